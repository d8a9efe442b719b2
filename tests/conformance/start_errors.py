"""Recorded configurations with which the kubelet does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from tests.conformance.outcome import Case


def start_is_refused(case: Case) -> Outcome:
    return Outcome.wrong("not compared yet: " + case["expected"]["start_error"])
