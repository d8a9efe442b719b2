from __future__ import annotations

import mmap
import platform
from typing import Never

import pytest

from tests.guest import tsc


def test_an_interrupted_reading_does_not_count() -> None:
    readings = [(0, 100, 9_000), (10_000, 400, 10_200), (20_000, 900, 70_000)]
    assert tsc.best(readings) == (400, 10_100)


def test_the_rate_is_in_kilohertz() -> None:
    assert tsc.rate_khz((1_000, 5_000_000), (260_614_000, 105_000_000)) == 2_606_130


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the guests need an x86_64 host")
def test_two_measurements_of_the_host_agree() -> None:
    first, second = tsc.frequency_khz(), tsc.frequency_khz()
    if first is None or second is None:
        pytest.skip("this host does not let a process run code that it wrote")
    assert first > 100_000
    assert second == pytest.approx(first, rel=0.01)


def test_a_host_that_forbids_it_gives_no_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> Never:
        raise PermissionError

    monkeypatch.setattr(mmap, "mmap", forbidden)
    assert tsc.frequency_khz() is None
