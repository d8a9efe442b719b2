from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysfs.mask import EMPTY, Mask
from systemd.units import (
    INFINITY,
    Property,
    allowed_cpus,
    allowed_memory_nodes,
    bytes_mask,
    cpu_quota,
    cpu_weight,
    mask_bytes,
    written_quota,
)


@pytest.mark.parametrize(
    ("text", "data"), [("", b""), ("0", b"\x01"), ("0-7", b"\xff"), ("9", b"\x00\x02")]
)
def test_a_set_is_a_little_endian_bit_mask(text: str, data: bytes) -> None:
    assert mask_bytes(Mask.parse(text)) == data
    assert allowed_cpus(Mask.parse(text)) == Property("AllowedCPUs", "ay", data)
    assert allowed_memory_nodes(Mask.parse(text)) == Property("AllowedMemoryNodes", "ay", data)


@given(st.integers(0, 2**300))
def test_a_mask_survives_the_wire(bits: int) -> None:
    assert bytes_mask(mask_bytes(Mask(bits))) == Mask(bits)


def test_trailing_zero_bytes_mean_nothing() -> None:
    assert bytes_mask(b"\x01\x00\x00") == Mask.of(0)
    assert bytes_mask(b"") == EMPTY


def test_no_quota_is_infinity() -> None:
    assert cpu_quota(None) == (Property("CPUQuotaPerSecUSec", "t", INFINITY),)


@pytest.mark.parametrize(
    ("quota", "period", "per_second"),
    [
        (100_000, 100_000, 1_000_000),
        (250_500, 100_000, 2_510_000),
        (1_000, 100_000, 10_000),
        (1, 100_000, 10_000),
    ],
)
def test_a_quota_is_rounded_up_to_whole_percents(quota: int, period: int, per_second: int) -> None:
    assert cpu_quota(quota, period) == (Property("CPUQuotaPerSecUSec", "t", per_second),)


def test_another_period_is_recorded_too() -> None:
    assert cpu_quota(25_000, 50_000) == (
        Property("CPUQuotaPerSecUSec", "t", 500_000),
        Property("CPUQuotaPeriodUSec", "t", 50_000),
    )


def test_what_systemd_writes_is_known_from_its_record() -> None:
    assert written_quota(INFINITY) == (None, 100_000)
    assert written_quota(1_500_000) == (150_000, 100_000)
    assert written_quota(2_505_000) == (250_500, 100_000)
    assert written_quota(500_000, 50_000) == (25_000, 50_000)
    assert written_quota(5_000) == (1_000, 200_000)


@given(st.integers(1_000, 10**9), st.integers(1_000, 1_000_000))
def test_the_record_is_never_tighter_than_the_quota(quota: int, period: int) -> None:
    per_second = cpu_quota(quota, period)[0].value
    assert isinstance(per_second, int)
    written, written_period = written_quota(per_second, period)
    assert written is not None
    # One microsecond per period is lost to whole numbers.
    assert (written + 1) * period >= quota * written_period


@pytest.mark.parametrize("weight", [0, 10_001])
def test_a_weight_has_bounds(weight: int) -> None:
    assert cpu_weight(100) == Property("CPUWeight", "t", 100)
    with pytest.raises(ValueError, match=f"not {weight}"):
        cpu_weight(weight)
