from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.guest.__main__ import status, summary
from tests.guest.clock import Stamp
from tests.guest.runner import Console, Verdict, follow, judge
from tests.guest.scenarios import Scenario

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

SCENARIO = Scenario("name", "two-sockets", "")
GOOD = {"name": "is so", "passed": True, "detail": ""}
BAD = {"name": "is not", "passed": False, "detail": "found"}


#: A clock that went as the host's, and one that went 3.2 times as fast.
RIGHT = tuple(Stamp(second, 500 + second) for second in (1.0, 2.0, 3.0, 4.0))
FAST = tuple(Stamp(second * 3.2, 500 + second) for second in (1.0, 2.0, 3.0, 4.0))


def console(said: bytes, stamps: tuple[Stamp, ...] = RIGHT) -> Console:
    return Console(b"guest-job: start uptime=0.50\r\n" + said, stamps)


def record(directory: Path, checks: list[dict[str, object]], error: str = "") -> None:
    (directory / "results.json").write_text(json.dumps({"checks": checks, "error": error}))


def end(nonce: str = "abc", status: int = 0) -> bytes:
    return f"ok\r\nguest-job: end nonce={nonce} status={status} uptime=12.5\r\n".encode()


def test_a_run_that_ended_with_good_checks_passes(tmp_path: Path) -> None:
    record(tmp_path, [GOOD, GOOD])
    verdict = judge(SCENARIO, "abc", console(end()), tmp_path, 3.5)
    assert verdict.passed
    assert verdict.line().split() == ["PASS", "name", "3.5", "s", "2", "checks"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"", "did not end by itself"),
        (b"guest-job: end nonce=abc status=0 upti", "did not end by itself"),
        (end(nonce="other"), "not this run's"),
        (end(status=96), "status 96"),
    ],
)
def test_good_checks_do_not_make_up_for_a_bad_end(
    tmp_path: Path, said: bytes, problem: str
) -> None:
    record(tmp_path, [GOOD])
    verdict = judge(SCENARIO, "abc", console(said), tmp_path, 0)
    assert not verdict.passed
    assert verdict.booted
    assert problem in verdict.problems[0]


def test_no_results_and_no_checks_fail(tmp_path: Path) -> None:
    assert judge(SCENARIO, "abc", console(end()), tmp_path, 0).problems == ("no check ran",)
    record(tmp_path, [])
    assert judge(SCENARIO, "abc", console(end()), tmp_path, 0).problems == ("no check ran",)


def test_a_failed_check_and_an_early_stop_fail_and_are_reported(tmp_path: Path) -> None:
    record(tmp_path, [GOOD, BAD], error="LookupError: none")
    (tmp_path / "console.log").write_text("what was said")
    verdict = judge(SCENARIO, "abc", console(end(status=1)), tmp_path, 0)
    assert verdict.problems == (
        "check failed: is not: found",
        "the scenario stopped: LookupError: none",
    )
    lines = verdict.report().splitlines()
    assert "  | what was said" in lines
    assert lines[-2:] == [f"  - {problem}" for problem in verdict.problems]


def test_a_guest_that_never_ended_is_judged_by_what_it_printed(tmp_path: Path) -> None:
    said = b"ok      0.5 1 is so: 3\r\nFAIL    9.9 2 is not: found: 4\r\n"
    verdict = judge(SCENARIO, "abc", console(said), tmp_path, 0)
    assert verdict.checks == 2
    assert verdict.problems[0].startswith("check failed: is not: found: 4")
    assert "did not end by itself" in verdict.problems[1]


@pytest.mark.parametrize("checks", [[GOOD], [BAD]])
def test_a_wrong_clock_fails_the_boot_whatever_the_scenario_found(
    tmp_path: Path, checks: list[dict[str, object]]
) -> None:
    record(tmp_path, checks)
    verdict = judge(SCENARIO, "abc", console(end(), FAST), tmp_path, 0)
    assert not verdict.passed
    assert not verdict.booted
    assert verdict.line().startswith("BOOT name")
    (problem,) = verdict.problems
    assert "did not boot as it has to: its clock goes 3.20 times as fast" in problem


def test_a_guest_whose_job_never_started_did_not_boot(tmp_path: Path) -> None:
    verdict = judge(SCENARIO, "abc", Console(b"panic\r\n"), tmp_path, 0)
    assert not verdict.booted
    assert "its job never started" in verdict.problems[0]


def pipe(*parts: bytes) -> IO[bytes]:
    """Return the reading end of a pipe that stays open, with something in it."""
    reading, writing = os.pipe()
    for part in parts:
        os.write(writing, part)
    return os.fdopen(reading, "rb", buffering=0)


def test_a_guest_whose_clock_is_wrong_is_not_waited_for() -> None:
    fast = b"".join(b"guest-job: clock uptime=%d.000\r\n" % second for second in range(31))
    log = io.BytesIO()
    with pipe(fast) as stream:
        heard = follow(stream, deadline=float("inf"), silence=600, log=log)
    assert log.getvalue() == fast.replace(b"\r", b"")
    assert heard.said == fast
    assert len(heard.stamps) == 31


def test_a_silent_guest_is_given_up() -> None:
    with pipe(b"guest-job: clock uptime=1.50\r\n") as stream:
        assert len(follow(stream, deadline=float("inf"), silence=0, log=io.BytesIO()).stamps) == 1


GOOD_ONE = Verdict("good", 1.0, 3)
BAD_ONE = Verdict("bad", 2.0, 3, ("check failed: its set: found {1}, expected {2} in Cgroup(a)",))
UNBOOTED = Verdict("late", 3.0, 0, ("the guest did not boot",), booted=False)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([GOOD_ONE], 0),
        ([GOOD_ONE, BAD_ONE], 1),
        ([UNBOOTED, GOOD_ONE], 3),
        ([BAD_ONE, UNBOOTED], 3),
    ],
)
def test_a_failed_boot_has_an_exit_status_of_its_own(
    verdicts: list[Verdict], expected: int
) -> None:
    assert status(verdicts) == expected


def test_the_last_lines_say_what_differed_and_where() -> None:
    assert summary([BAD_ONE, GOOD_ONE, UNBOOTED]).splitlines() == [
        BAD_ONE.line(),
        "  - check failed: its set: found {1}, expected {2} in Cgroup(a)",
        UNBOOTED.line(),
        "  - the guest did not boot",
        "guest: 1 passed, 1 failed, 1 did not boot",
    ]
    assert summary([GOOD_ONE]) == "guest: 1 passed, 0 failed"
