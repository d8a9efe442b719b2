from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroupfs.errors import CgroupValueError
from cgroupfs.settings import MAX_QUOTA_US, UNLIMITED, CpuMax

LIMITS = st.builds(
    CpuMax, st.none() | st.integers(1_000, MAX_QUOTA_US), st.integers(1_000, 1_000_000)
)


@given(LIMITS)
def test_a_limit_is_written_as_the_kernel_shows_it(limit: CpuMax) -> None:
    assert CpuMax.parse(f"{limit}\n") == limit


@pytest.mark.parametrize(
    ("quota", "period"),
    [(999, 100_000), (0, 100_000), (None, 999), (None, 1_000_001), (2**44, 1_000)],
)
def test_what_the_kernel_would_reject_is_rejected(quota: int | None, period: int) -> None:
    with pytest.raises(CgroupValueError, match="between"):
        CpuMax(quota, period)


@pytest.mark.parametrize("text", ["", "max", "100000", "max max", "-1 100000", "1 2 3", "x 100000"])
def test_text_that_no_kernel_writes_is_rejected(text: str) -> None:
    with pytest.raises(CgroupValueError):
        CpuMax.parse(text)


@given(LIMITS, LIMITS)
def test_one_limit_allows_another_when_its_share_is_not_smaller(one: CpuMax, two: CpuMax) -> None:
    assert one.allows(one)
    assert UNLIMITED.allows(one)
    assert one.allows(two) or two.allows(one)
    assert one.allows(UNLIMITED) == (one.quota_us is None)
