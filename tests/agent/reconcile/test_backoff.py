from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.reconcile.backoff import AT_ONCE, IN_A_ROW, LONGEST_PAUSE, Backoff
from cgroupfs.plan import Setting
from sysfs.mask import Mask

MINE = Setting("pods/a", cpus=Mask.of(1))
OTHER = Setting("pods/a", cpus=Mask.of(2))
#: A reconcile period.
STEP = 10.0


def repaired(backoff: Backoff, now: float, found: str = "x", setting: Setting = MINE) -> float:
    """Note a repair; return how long the cgroup rests after it."""
    backoff.note([(setting, found)], now)
    contest = backoff.resting(now).get(setting.cgroup)
    return 0.0 if contest is None else contest.pause


def test_the_first_repairs_are_made_at_once_then_every_pause_is_twice_as_long() -> None:
    backoff, now, pauses = Backoff(), 0.0, []
    for _ in range(12):
        pauses.append(repaired(backoff, now))
        now += max(pauses[-1], STEP)
    expected = [0.0] * (AT_ONCE - 1) + [20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]
    assert pauses == expected


def test_it_rests_until_its_pause_is_over() -> None:
    backoff = Backoff()
    for time in range(AT_ONCE):
        repaired(backoff, float(time))
    assert set(backoff.resting(AT_ONCE - 1 + 19.9)) == {"pods/a"}
    assert backoff.resting(AT_ONCE - 1 + 20.0) == {}


def test_peace_for_a_while_is_forgetting() -> None:
    backoff = Backoff()
    for time in range(AT_ONCE):
        repaired(backoff, float(time))
    ends = AT_ONCE - 1 + 20.0
    assert repaired(backoff, ends + IN_A_ROW) == 0.0


def test_another_wish_is_another_question() -> None:
    backoff = Backoff()
    for time in range(AT_ONCE):
        repaired(backoff, float(time))
    assert repaired(backoff, 3.0, setting=OTHER) == 0.0
    assert backoff.resting(3.0) == {}


def test_different_changes_are_no_contest_until_they_are_too_many() -> None:
    backoff = Backoff()
    assert [repaired(backoff, float(n), f"change {n}") for n in range(10)] == [0.0] * 10
    assert any(repaired(backoff, 10.0 + n, f"more {n}") for n in range(20))


def test_two_values_in_turn_are_a_contest() -> None:
    backoff = Backoff()
    assert any(repaired(backoff, float(n), f"value {n % 2}") for n in range(10))


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1000), max_size=60))
def test_a_pause_has_an_end_and_repairs_become_rare(gaps: list[float]) -> None:
    backoff, now = Backoff(), 0.0
    for gap in gaps:
        if "pods/a" not in backoff.resting(now):
            assert repaired(backoff, now) <= LONGEST_PAUSE
        now += gap
    assert backoff.resting(now + LONGEST_PAUSE) == {}
