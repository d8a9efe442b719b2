from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.guest.runner import judge
from tests.guest.scenarios import Scenario

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = Scenario("name", "two-sockets", "")
GOOD = {"name": "is so", "passed": True, "detail": ""}
BAD = {"name": "is not", "passed": False, "detail": "found"}


def record(directory: Path, checks: list[dict[str, object]], error: str = "") -> None:
    (directory / "results.json").write_text(json.dumps({"checks": checks, "error": error}))


def end(nonce: str = "abc", status: int = 0) -> bytes:
    return f"ok\r\nguest-job: end nonce={nonce} status={status} uptime=12.5\r\n".encode()


def test_a_run_that_ended_with_good_checks_passes(tmp_path: Path) -> None:
    record(tmp_path, [GOOD, GOOD])
    verdict = judge(SCENARIO, "abc", end(), tmp_path, 3.5)
    assert verdict.passed
    assert verdict.line().split() == ["PASS", "name", "3.5", "s", "2", "checks"]


@pytest.mark.parametrize(
    ("console", "problem"),
    [
        (b"", "did not end by itself"),
        (b"guest-job: end nonce=abc status=0 upti", "did not end by itself"),
        (end(nonce="other"), "not this run's"),
        (end(status=96), "status 96"),
    ],
)
def test_good_checks_do_not_make_up_for_a_bad_end(
    tmp_path: Path, console: bytes, problem: str
) -> None:
    record(tmp_path, [GOOD])
    verdict = judge(SCENARIO, "abc", console, tmp_path, 0)
    assert not verdict.passed
    assert problem in verdict.problems[0]


def test_no_results_and_no_checks_fail(tmp_path: Path) -> None:
    assert judge(SCENARIO, "abc", end(), tmp_path, 0).problems == ("no check ran",)
    record(tmp_path, [])
    assert judge(SCENARIO, "abc", end(), tmp_path, 0).problems == ("no check ran",)


def test_a_failed_check_and_an_early_stop_fail_and_are_told(tmp_path: Path) -> None:
    record(tmp_path, [GOOD, BAD], error="LookupError: none")
    (tmp_path / "console.log").write_text("what was said")
    verdict = judge(SCENARIO, "abc", end(status=1), tmp_path, 0)
    assert verdict.problems == (
        "check failed: is not: found",
        "the scenario stopped: LookupError: none",
    )
    assert "what was said" in verdict.report()


def test_a_guest_that_never_ended_is_judged_by_what_it_printed(tmp_path: Path) -> None:
    console = b"ok      0.5 1 is so: 3\r\nFAIL    9.9 2 is not: found: 4\r\n"
    verdict = judge(SCENARIO, "abc", console, tmp_path, 0)
    assert verdict.checks == 2
    assert verdict.problems[0].startswith("check failed: is not: found: 4")
    assert "did not end by itself" in verdict.problems[1]
