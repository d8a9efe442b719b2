from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.inside import checks
from tests.guest.inside.checks import Checks
from tests.guest.inside.kernel import Cgroup

if TYPE_CHECKING:
    import pytest


class Time:
    """A clock that only a pause moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_difference_is_reported_with_both_sides_and_the_cgroup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = Checks()
    cgroup = Cgroup("kubepods.slice/one.slice")
    assert not done.equal("its CPUs", frozenset({10, 2}), frozenset({3}), cgroup)
    assert done.done[0].detail == "found {2, 10}, expected {3} in Cgroup(kubepods.slice/one.slice)"
    assert done.done[0].detail in capsys.readouterr().out
    done.equal("its amounts", {"same": 1, "other": 2}, {"same": 1, "less": 5})
    assert done.done[1].detail == "found {'other': 2}, expected {'less': 5}"


def test_what_comes_within_five_minutes_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    assert Checks().eventually("comes late", lambda: time.now > 290, expected=True)


def test_what_never_comes_is_reported_and_makes_the_next_wait_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = Time(monkeypatch)
    done = Checks()
    for most in (checks.PATIENCE, checks.HURRIED):
        began = time.now
        assert not done.eventually("never comes", lambda: 1, expected=2)
        assert most <= time.now - began <= most + 2 * checks.PAUSE
    assert done.done[0].detail == "found 1, expected 2"
