from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysfs.mask import Mask
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
    assert bytes_mask(mask_bytes(Mask(bits)) + b"\0\0") == Mask(bits)


@pytest.mark.parametrize(
    ("quota", "period", "recorded"),
    [
        (None, 100_000, (INFINITY,)),
        (100_000, 100_000, (1_000_000,)),
        (250_500, 100_000, (2_510_000,)),  # rounded up to whole percents
        (1_000, 100_000, (10_000,)),
        (1, 100_000, (10_000,)),
        (25_000, 50_000, (500_000, 50_000)),
    ],
)
def test_a_quota_is_recorded_by_the_second_and_another_period_too(
    quota: int | None, period: int, recorded: tuple[int, ...]
) -> None:
    names = ("CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec")
    expected = (Property(name, "t", value) for name, value in zip(names, recorded, strict=False))
    assert cpu_quota(quota, period) == tuple(expected)


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
