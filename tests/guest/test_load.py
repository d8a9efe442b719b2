from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.inside import load
from tests.guest.inside.kernel import Cgroup


class Charged(Cgroup):
    """A cgroup that uses a CPU, after it was charged for some seconds that it did not run."""

    def __init__(self, stood_still: float, rate: float) -> None:
        super().__init__(Path("/sys/fs/cgroup/charged"))
        self.used, self.rate = 0.0, rate
        self.stood_still = stood_still

    def read(self, name: str) -> str:
        assert name == "cpu.stat"
        return f"usage_usec {round(self.used * 1e6)}\nnr_throttled 0"

    def passes(self, seconds: float) -> None:
        """Go on for some seconds."""
        self.used += seconds * self.rate + self.stood_still
        self.stood_still = 0.0


@pytest.mark.parametrize(
    ("stood_still", "rate", "seconds"), [(0.0, 1.0, 4), (1.5, 1.0, 16), (0.0, 1.2, 120)]
)
def test_a_moment_without_the_host_is_outweighed_and_a_quota_that_is_too_large_is_not(
    monkeypatch: pytest.MonkeyPatch, stood_still: float, rate: float, seconds: int
) -> None:
    cgroup, now = Charged(stood_still, rate), [0.0]

    def sleep(pause: float) -> None:
        now[0] += pause
        cgroup.passes(pause)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    found = load.measure({"one": cgroup}, 4, lambda found: found["one"].cpus <= 1.1)
    assert now[0] == seconds
    assert (found["one"].cpus <= 1.1) == (rate == 1.0)
