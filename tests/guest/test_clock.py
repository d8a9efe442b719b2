from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.guest import clock
from tests.guest.clock import Stamp

CHANCE = random.Random(12)  # noqa: S311 - the same delays in every run


def seen(rate: float, seconds: float, latest: float = 0.0, pause: float = 0.25) -> list[Stamp]:
    """Return stamps of a clock of this rate for so many of the host's seconds.

    Each is read up to `latest` seconds after it was written, and none before an earlier one.
    """
    stamps: list[Stamp] = []
    for number in range(int(seconds / pause) + 1):
        written = number * pause
        read = max(written + CHANCE.uniform(0, latest), stamps[-1].host if stamps else 0.0)
        stamps.append(Stamp(100 + written * rate, read))
    return stamps


@pytest.mark.parametrize("rate", [0.1, 0.31, 0.9, 1.1, 3.2, 20.0])
@pytest.mark.parametrize("latest", [0.0, 0.3])
def test_a_clock_that_goes_wrong_is_found_although_lines_come_late(
    rate: float, latest: float
) -> None:
    stamps = seen(rate, 35, latest)
    assert clock.is_wrong(stamps)
    assert f"{clock.rate(stamps):.2f} times as fast as the host's" in clock.problem(stamps)
    assert clock.rate(stamps) == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("rate", [0.98, 1.0, 1.02])
@pytest.mark.parametrize("latest", [0.0, 0.3])
def test_a_right_clock_is_never_condemned_because_lines_come_late(
    rate: float, latest: float
) -> None:
    for _ in range(20):
        stamps = seen(rate, 35, latest)
        assert not any(clock.is_wrong(stamps[:count]) for count in range(len(stamps) + 1))
        assert clock.problem(stamps) == ""


def test_a_host_that_stands_still_for_seconds_condemns_no_clock() -> None:
    right = seen(1.0, 9.5)
    delayed = [Stamp(100 + second, second + 1.3) for second in (12.0, 14.0)]
    stamps = [*right, *delayed]
    assert not clock.agrees(stamps)
    assert not clock.is_wrong(stamps)
    assert clock.problem(stamps) == ""


@pytest.mark.parametrize("late", [0, 1, 130, 140])
def test_one_line_that_comes_a_second_late_does_not_decide(late: int) -> None:
    stamps = seen(1.0, 35)
    stamps[late] = Stamp(stamps[late].guest, stamps[late].host + 1.0)
    stamps.sort(key=lambda stamp: stamp.host)
    assert not any(clock.is_wrong(stamps[:count]) for count in range(len(stamps) + 1))
    assert clock.problem(stamps) == ""


@pytest.mark.parametrize("stamps", [[], seen(1.0, 0), seen(1.0, 1.5)])
def test_a_clock_that_was_not_looked_at_for_long_enough_is_not_right(stamps: list[Stamp]) -> None:
    assert not clock.agrees(stamps)
    assert not clock.is_wrong(stamps)
    assert "could not be measured" in clock.problem(stamps)


def test_stamps_and_the_end_mark_are_read_and_nothing_else() -> None:
    said = (
        b"guest-job: start uptime=1.25\r\nok 1.0 1 uptime=3.5 guest-job: 7\r\n"
        b"guest-job: clock uptime=2.500\r\nguest-job: end nonce=ab status=0 uptime=9.75\r\n"
    )
    read = clock.stamps(said, 50.0)
    assert [stamp.guest for stamp in read] == [2.5, 9.75]
    assert all(one.host == other.host == 50.0 for one, other in pairwise(read))
