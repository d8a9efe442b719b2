from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods.quantity import MAX_INT64, Notation, Quantity, QuantityError

_FACTORS = {
    **{name: Fraction(1000) ** (at - 3) for at, name in enumerate(("n", "u", "m", *" kMGTPE"))},
    **{f"{name}i": Fraction(1024) ** at for at, name in enumerate("KMGTPE", 1)},
    "e3": Fraction(1000),
    "E-2": Fraction(1, 100),
    "e+0": Fraction(1),
}


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("+2", 2 * 10**9),
        ("-1", -(10**9)),
        ("500m", 5 * 10**8),
        (".5", 5 * 10**8),
        ("5.", 5 * 10**9),
        ("1E3", 10**12),
        ("1E", 10**27),
        ("1.5Gi", 3 * 2**29 * 10**9),
        ("0.1n", 1),
        ("-0.1n", -1),
        ("1.0000000001", 10**9 + 1),
        (" 4Ki\n", 4096 * 10**9),
        ("0e99", 0),
        ("1e-99", 1),
    ],
)
def test_reads_every_form_of_an_amount(text: str, nano: int) -> None:
    assert Quantity.parse(text).nano == nano


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "-", "2x", "1 000", "1_000", "0x10", "1e", "1K", "1ki", "1mi", "Gi", "1e3k",
     "--1", "1Gi1", "1,5", "٣", "1e100", "1e-100", "NaN", "inf", "1i", "9" * 129],
)  # fmt: skip
def test_rejects_what_is_not_a_amount_and_quotes_it(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.text.startswith(text[:10])
    assert caught.value.reason


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.1", "100m"),
        ("10000", "10k"),
        ("100000", "100k"),
        ("1024", "1024"),
        ("0.5Ki", "512"),
        ("0.5", "500m"),
        ("0.1Ki", "102400m"),
        ("1e3", "1e3"),
        ("12e-1", "1200e-3"),
        ("10e2", "1e3"),
        ("0Ki", "0"),
        ("-2Ki", "-2Ki"),
        ("1000E", "1000E"),
        ("100Ei", str(MAX_INT64)),
    ],
)
def test_canonical_text_is_that_of_the_api_server(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@given(
    st.integers(0, 10**15),
    st.integers(0, 10**6 - 1),
    st.sampled_from(sorted(_FACTORS)).map(str.strip),
    st.sampled_from(["", "+", "-"]),
)
def test_equals_arithmetic_rounded_from_zero(whole: int, part: int, suffix: str, sign: str) -> None:
    exact = (Fraction(whole) + Fraction(part, 10**6)) * _FACTORS[suffix or " "] * 10**9
    rounded = -(-exact.numerator // exact.denominator)
    if suffix.endswith("i"):
        rounded = min(rounded, MAX_INT64 * 10**9)
    quantity = Quantity.parse(f"{sign}{whole}.{part:06}{suffix}")
    assert quantity.nano == (-rounded if sign == "-" else rounded)


@given(st.integers(-(2**70), 2**70), st.sampled_from(list(Notation)))
def test_canonical_text_reads_back_as_the_same_amount(nano: int, notation: Notation) -> None:
    quantity = Quantity(nano, notation)
    assert Quantity.parse(str(quantity)) == quantity


@given(st.text())
def test_any_text_is_an_amount_or_a_quantity_error(text: str) -> None:
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return
    assert Quantity.parse(str(quantity)) == quantity


def test_value_and_milli_value_round_up() -> None:
    assert Quantity.parse("1001u").milli_value == 2
    assert Quantity.parse("100m").value == 1
    assert Quantity.parse("3").milli_value == 3000


@pytest.mark.parametrize(
    ("text", "whole"),
    [("1.5Gi", 3 * 2**29), ("1000m", 1), ("1500m", None), ("1e3", 1000), ("10E", None)],
)
def test_as_int64_is_none_unless_the_amount_is_whole_and_fits(text: str, whole: int | None) -> None:
    assert Quantity.parse(text).as_int64() == whole


def test_equality_ignores_how_an_amount_was_written() -> None:
    assert Quantity.parse("1Gi") == Quantity.parse("1073741824")
    assert hash(Quantity.parse("1")) == hash(Quantity.parse("1000m"))


def test_a_sum_keeps_the_notation_of_the_first_amount_that_is_not_zero() -> None:
    binary = Quantity.parse("1Gi")
    assert str(Quantity.parse("0") + binary) == "1Gi"
    assert str(binary + Quantity.parse("1073741824")) == "2Gi"
    assert str(Quantity.parse("1073741824") + binary) == "2147483648"
    assert str(binary - Quantity.parse("512Mi")) == "512Mi"
