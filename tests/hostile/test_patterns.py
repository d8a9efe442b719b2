"""No regular expression of the product takes longer than its text is long."""

from __future__ import annotations

import os
import re
from typing import Any, Final

import pytest

from tests.hostile.growth import demand_quick
from tests.hostile.patterns import Used, hidden_uses, hostile_texts, patterns

pytestmark = pytest.mark.nightly

USED = tuple(patterns())
#: Bytes of the longest text; `NUMAWARDEN_LONGEST=4194304` asks for the whole of what is accepted.
_LONGEST: Final = int(os.environ.get("NUMAWARDEN_LONGEST", str(1 << 15)))


def measure(pattern: re.Pattern[Any], method: str) -> None:
    """Apply a pattern to long texts that are hard for it."""

    def apply(text: str | bytes) -> object:
        if method == "finditer":
            return sum(1 for _ in pattern.finditer(text))
        return getattr(pattern, method)(*((text[:0],) if method in ("sub", "subn") else ()), text)

    for make in hostile_texts(pattern):
        # Long enough for what is quadratic to take many times its bound, and for what is linear
        # to take a tenth of it. A pattern has hundreds of such texts.
        demand_quick(apply, make, _LONGEST, share=0.2)


@pytest.mark.parametrize("used", USED, ids=lambda used: used.name)
def test_a_pattern_takes_no_longer_than_its_text_is_long(used: Used) -> None:
    for method in used.methods:
        measure(used.pattern, method)


def test_no_pattern_escapes_the_measurement() -> None:
    assert len(USED) > 30
    assert list(hidden_uses()) == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"[-+]?0[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?", "fullmatch"),
        (r"(?:[a-c]+)+d", "fullmatch"),
        (r"x:[0-9]*y?[0-9]*z", "match"),
        (r"[0-9]+kB", "search"),
        (r"ab(?:cd)*(?:cdcd)*e", "fullmatch"),
    ],
)
def test_a_pattern_that_takes_longer_is_found(pattern: str, method: str) -> None:
    with pytest.raises(AssertionError):
        measure(re.compile(pattern), method)
