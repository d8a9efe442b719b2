"""What a verdict says of a run, and when a guest is not waited for any longer."""

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

GOOD = {"name": "is so", "passed": True, "detail": ""}
BAD = {"name": "is not", "passed": False, "detail": "found"}
START = b"guest-job: start uptime=0.50\r\n"
END = b"ok\r\nguest-job: end nonce=abc status=%d uptime=12.5\r\n"


def judged(
    directory: Path,
    said: bytes,
    *checks: dict[str, object],
    error: str = "",
    rate: float = 1.0,
) -> Verdict:
    """Judge a run with the nonce abc, whose clock went so much faster than the host's."""
    if checks or error:
        text = json.dumps({"checks": checks, "error": error})
        (directory / "results.json").write_text(text)
    stamps = tuple(Stamp(second * rate, 500 + second) for second in (1.0, 2.0, 3.0, 4.0))
    scenario = Scenario("name", "two-sockets", "")
    return judge(scenario, "abc", Console(said, stamps), directory, 3.5)


def test_a_run_that_ended_with_good_checks_passes(tmp_path: Path) -> None:
    verdict = judged(tmp_path, START + END % 0, GOOD, GOOD)
    assert verdict.passed
    assert verdict.line().split() == ["PASS", "name", "3.5", "s", "2", "checks"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"", "did not end by itself"),
        ((END % 0)[:-9], "did not end by itself"),
        (END.replace(b"abc", b"other") % 0, "not this run's"),
        (END % 96, "status 96"),
    ],
)
def test_good_checks_do_not_make_up_for_a_bad_end(
    tmp_path: Path, said: bytes, problem: str
) -> None:
    verdict = judged(tmp_path, START + said, GOOD)
    assert verdict.booted
    assert problem in verdict.problems[0]


def test_no_checks_fail(tmp_path: Path) -> None:
    assert judged(tmp_path, START + END % 0).problems == ("no check ran",)


def test_a_failed_check_and_an_early_stop_fail_and_are_reported(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("what was said")
    verdict = judged(tmp_path, START + END % 1, GOOD, BAD, error="LookupError: none")
    assert verdict.problems == (
        "check failed: is not: found",
        "the scenario stopped: LookupError: none",
    )
    lines = verdict.report().splitlines()
    assert "  | what was said" in lines
    assert lines[-2:] == [f"  - {problem}" for problem in verdict.problems]


def test_a_guest_that_never_ended_is_judged_by_what_it_printed(tmp_path: Path) -> None:
    said = b"ok      0.5 1 is so: 3\r\nFAIL    9.9 2 is not: found: 4\r\n"
    verdict = judged(tmp_path, START + said)
    assert verdict.checks == 2
    assert verdict.problems[0].startswith("check failed: is not: found: 4")
    assert "did not end by itself" in verdict.problems[1]


@pytest.mark.parametrize("check", [GOOD, BAD])
def test_a_wrong_clock_fails_the_boot_whatever_the_scenario_found(
    tmp_path: Path, check: dict[str, object]
) -> None:
    verdict = judged(tmp_path, START + END % 0, check, rate=3.2)
    assert not verdict.booted
    assert verdict.line().startswith("BOOT name")
    (problem,) = verdict.problems
    assert "did not boot as it has to: its clock goes 3.20 times as fast" in problem


def test_a_guest_whose_job_never_started_did_not_boot(tmp_path: Path) -> None:
    verdict = judged(tmp_path, b"panic\r\n")
    assert not verdict.booted
    assert "its job never started" in verdict.problems[0]


def pipe(said: bytes) -> IO[bytes]:
    """Return the reading end of a pipe that stays open, with something in it."""
    reading, writing = os.pipe()
    os.write(writing, said)
    return os.fdopen(reading, "rb", buffering=0)


@pytest.mark.parametrize(("seconds", "silence"), [(31, 600), (1, 0)])
def test_a_guest_whose_clock_is_wrong_or_that_is_silent_is_given_up(
    seconds: int, silence: float
) -> None:
    said = b"".join(b"guest-job: clock uptime=%d.000\r\n" % second for second in range(seconds))
    log = io.BytesIO()
    with pipe(said) as stream:
        heard = follow(stream, deadline=float("inf"), silence=silence, log=log)
    assert log.getvalue() == said.replace(b"\r", b"")
    assert (heard.said, len(heard.stamps)) == (said, seconds)


def test_a_guest_that_boots_again_is_judged_by_its_last_clock() -> None:
    said = b"".join(b"guest-job: clock uptime=%d.0\r\n" % second for second in (90, 91, 1, 2))
    with pipe(said + END % 0) as stream:
        heard = follow(stream, deadline=float("inf"), silence=600, log=io.BytesIO())
    assert [each.guest for each in heard.stamps] == [1, 2, 12.5]


def test_the_end_says_what_differed_and_a_failed_boot_has_a_status_of_its_own() -> None:
    good = Verdict("good", 1.0, 3)
    bad = Verdict("bad", 2.0, 3, ("check failed: its set: found {1}, expected {2}",))
    unbooted = Verdict("late", 3.0, 0, ("the guest did not boot",), booted=False)
    runs = ([good], [good, bad], [unbooted, good], [bad, unbooted])
    assert [status(verdicts) for verdicts in runs] == [0, 1, 3, 3]
    assert summary([bad, good, unbooted]).splitlines() == [
        bad.line(),
        "  - check failed: its set: found {1}, expected {2}",
        unbooted.line(),
        "  - the guest did not boot",
        "guest: 1 passed, 1 failed, 1 did not boot",
    ]
