"""A verdict names the worst figure of each target and says plainly whether it is met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.measure import Figure
from tests.bench.targets import verdicts

pytestmark = pytest.mark.nightly


def test_what_takes_too_long_grows_or_writes_too_much_is_a_miss_and_named() -> None:
    figures = [
        Figure("decide/2n128c/pods10", 100, 100, 200, 200),
        Figure("decide/2n128c/pods2500", 100, 140, 1001, 1001),
    ]
    name = "enforce/2n128c/systemd-exclusive-admit-guaranteed-pods2500"
    figures.append(replace(figures[0], name=name, writes=2505, bus_calls=4))
    lines = list(verdicts(figures, None))
    assert [line.partition("  ")[0] for line in lines] == [
        "MISSED",
        "met",
        "MISSED",
        "MISSED",
        "met",
    ]
    assert "p50 0.14 ms (decide/2n128c/pods2500), p99 1.00 ms" in lines[0]
    assert "1.40 times (decide/2n128c/pods2500)" in lines[2]
    assert "its writes guaranteed " in lines[3]
    assert "2505 at most" in lines[3]
