"""A budget of work is spent in steps, and says when it did not suffice."""

from __future__ import annotations

from agent.managers.topology.hint import SearchBudget


def test_steps_are_taken_until_none_is_left() -> None:
    work = SearchBudget(left=3)
    assert work.take(2)
    assert work.take()
    assert not work.exceeded
    assert not work.take()
    assert work.exceeded


def test_what_was_exceeded_stays_so() -> None:
    work = SearchBudget(left=1)
    assert not work.take(2)
    assert work.take()
    assert work.exceeded
