"""Kubernetes quantities (`500m`, `4Gi`, `1e3`) as exact integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NANO: Final = 10**9


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount in units of 10^-9 (the finest that Kubernetes keeps)."""

    nano: int

    @property
    def value(self) -> int:
        """The amount in whole units, rounded up (resource.Quantity.Value)."""
        return -(-self.nano // _NANO)

    @property
    def milli_value(self) -> int:
        """The amount in thousandths, rounded up (resource.Quantity.MilliValue)."""
        return -(-self.nano // (_NANO // 1000))
