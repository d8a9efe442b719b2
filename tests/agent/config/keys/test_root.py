"""Each key is declared once, and everything else that has a list of keys follows from it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import __version__
from agent.config.features import GATES
from agent.config.keys.amounts import ByteSize
from agent.config.keys.key import Section
from agent.config.keys.names import ControllerSet, OptionTexts
from agent.config.keys.root import CONFIGURATION
from agent.config.keys.scalars import (
    OneOf,
    OneOfAnyCase,
    Period,
    WholeNumber,
    duration_text,
    seconds_of,
)
from agent.config.load import load_config, override
from agent.config.model import Config, ConfigError
from agent.pods.quantity import Quantity

if TYPE_CHECKING:
    from agent.config.keys.key import Key

KEYS = {path: (section, key) for path, section, key in CONFIGURATION.paths()}
VALUES = {path: pair for path, pair in KEYS.items() if not isinstance(pair[1].kind, Section)}


@pytest.mark.parametrize(
    "section",
    [CONFIGURATION, *(key.kind for _, key in KEYS.values() if isinstance(key.kind, Section))],
    ids=lambda section: type(section.defaults).__name__,
)
def test_every_field_of_a_value_has_one_key_and_every_key_its_field(section: Section) -> None:
    stored = [key for key in section.keys if key.stored]
    assert sorted(key.attribute for key in stored) == sorted(section.defaults.__struct_fields__)


def test_the_defaults_of_the_sections_are_those_of_the_whole() -> None:
    for path, (_, key) in KEYS.items():
        if isinstance(key.kind, Section):
            value: object = Config()
            above = ""
            for name in path.split("."):
                above = f"{above}.{name}".lstrip(".")
                value = getattr(value, KEYS[above][1].attribute)
            assert key.kind.defaults == value


@pytest.mark.parametrize("path", VALUES)
def test_a_key_set_to_its_default_changes_nothing(path: str) -> None:
    section, key = KEYS[path]
    default = json.dumps(section.default(key))
    assert override(Config(), [f"{path}={default}"]) == Config()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_explained_in_sentences_and_says_since_when_there_is_one(path: str) -> None:
    key = KEYS[path][1]
    assert re.fullmatch(r"[A-Z].*\.", key.help, flags=re.DOTALL)
    assert "  " not in key.help
    assert _version(key.since) <= _version(__version__)


@pytest.mark.parametrize("path", VALUES)
def test_what_can_be_chosen_is_explained_in_full(path: str) -> None:
    key = KEYS[path][1]
    choices = _choices(key)
    if path != "agent.logging.level":
        assert set(key.values) == choices


def _choices(key: Key) -> set[str]:
    """Return the names that a key lets choose from; those of gates that change a decision."""
    kind = key.kind
    if isinstance(kind, OneOf | OneOfAnyCase):
        return {str(choice) for choice in kind.choices}
    if isinstance(kind, ControllerSet):
        return set(kind.schema()["items"]["enum"])
    if isinstance(kind, OptionTexts):
        return set(kind.names)
    return {*GATES, "AllAlpha", "AllBeta"} if key.name == "featureGates" else set()


def test_the_defaults_of_gates_are_as_explained() -> None:
    gates = Config().gates
    for name, meaning in KEYS["featureGates"][1].values.items():
        if name in GATES:
            on = getattr(gates, GATES[name].field)
            assert meaning.endswith(f"; default: {str(on).lower()}"), name


@pytest.mark.parametrize(
    "path", [path for path, (_, key) in KEYS.items() if isinstance(key.kind, WholeNumber)]
)
def test_both_bounds_of_a_number_are_accepted_and_nothing_beyond(path: str) -> None:
    kind = KEYS[path][1].kind
    assert isinstance(kind, WholeNumber)
    for number in (kind.lowest, kind.highest):
        override(Config(), [f"{path}={number}"])
    for number in (kind.lowest - 1, kind.highest + 1):
        with pytest.raises(ConfigError, match=f"from {kind.lowest} to {kind.highest}"):
            override(Config(), [f"{path}={number}"])


@pytest.mark.parametrize(
    "path", [path for path, (_, key) in KEYS.items() if isinstance(key.kind, ByteSize)]
)
def test_both_bounds_of_a_size_are_accepted_and_nothing_beyond(path: str) -> None:
    kind = KEYS[path][1].kind
    assert isinstance(kind, ByteSize)
    for size in (kind.lowest, kind.highest):
        override(Config(), [f"{path}={Quantity.of_bytes(size)}"])
    for size in (kind.lowest - 1, kind.highest + 1):
        with pytest.raises(ConfigError, match=re.escape(f"{path}: {Quantity.of_bytes(size)} is")):
            override(Config(), [f"{path}={Quantity.of_bytes(size)}"])


def test_both_bounds_of_a_period_are_accepted_and_nothing_beyond() -> None:
    kind = KEYS["cpuManagerReconcilePeriod"][1].kind
    assert isinstance(kind, Period)
    for text in ("100ms", "24h"):
        load_config(f"cpuManagerReconcilePeriod: {text}", "x")
    for text in ("99ms", "24h1s"):
        with pytest.raises(ConfigError, match="is not between 100ms and 24h"):
            load_config(f"cpuManagerReconcilePeriod: {text}", "x")


@pytest.mark.parametrize("path", KEYS)
def test_a_misspelt_key_is_rejected_with_its_name(path: str) -> None:
    key = KEYS[path][1]
    parent = path.removesuffix(key.name)
    with pytest.raises(ConfigError, match=f'did you mean "{key.name}"'):
        override(Config(), [f"{parent}{key.name}x=1"])


@given(st.integers(0, 86_400 * 10**9))
def test_a_written_duration_is_read_as_the_same_to_the_nanosecond(nanoseconds: int) -> None:
    seconds = seconds_of(duration_text(nanoseconds / 10**9))
    assert seconds is not None
    assert round(seconds * 10**9) == nanoseconds


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
