"""Each key is declared once, and everything else that has a list of keys follows from it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from agent import __version__
from agent.config.gates import GATES, MEMORY_QOS
from agent.config.keys import Section, paths, schema
from agent.config.load import override
from agent.config.model import Config, ConfigError
from agent.pods.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.config.keys import Key

KEYS = dict(paths(Config))
VALUES = {path: key for path, key in KEYS.items() if key.inner is None}


@pytest.mark.parametrize(
    "section",
    [Config, *(key.inner for key in KEYS.values() if key.inner is not None)],
    ids=lambda section: section.__name__,
)
def test_every_field_of_a_section_is_a_key(section: type[Section]) -> None:
    assert tuple(key.attribute for key in section.keys) == section.__struct_fields__


@pytest.mark.parametrize("path", VALUES)
def test_a_key_set_to_its_default_changes_nothing(path: str) -> None:
    default = json.dumps(KEYS[path].written_default)
    assert override(Config(), [f"{path}={default}"]) == Config()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_is_explained_in_sentences_and_says_since_when_there_is_one(path: str) -> None:
    key = KEYS[path]
    assert re.fullmatch(r"[A-Z].*\.", key.help, flags=re.DOTALL)
    assert "  " not in key.help
    assert _version(key.since) <= _version(__version__)


@pytest.mark.parametrize("path", KEYS)
def test_the_schema_explains_every_key_and_has_its_default(path: str) -> None:
    of: dict[str, Any] = schema(Config)
    for name in path.split("."):
        of = of["properties"][name]
    key = KEYS[path]
    for said in (key.help, *key.values, *key.values.values()):
        assert said in of["description"]
    assert of["default"] == key.written_default


@pytest.mark.parametrize("path", VALUES)
def test_what_can_be_chosen_is_explained_in_full(path: str) -> None:
    if path not in ("agent.logging.level", "apiVersion", "kind"):
        assert set(KEYS[path].values) == _choices(KEYS[path])


def _choices(key: Key) -> set[str]:
    """Return the names that a key lets choose from; those of gates that change a decision."""
    if key.name == "featureGates":
        return {*GATES, MEMORY_QOS, "AllAlpha", "AllBeta"}
    schema = key.kind.schema
    options = schema.get("propertyNames", {}) if key.name.endswith("PolicyOptions") else {}
    for names in (schema, schema.get("items", {}), options):
        if "enum" in names or "examples" in names:
            return set(names.get("enum") or names["examples"])
    return set()


def test_the_defaults_of_gates_are_as_explained() -> None:
    gates = Config().gates
    for name, meaning in KEYS["featureGates"].values.items():
        if name in GATES:
            on = getattr(gates, GATES[name].field)
            assert meaning.endswith(f"; default: {str(on).lower()}"), name


def _bounded() -> Iterator[tuple[str, Callable[[int], object], str]]:
    """Yield each key of a number, how one is written, and what is said of one beyond."""
    for path, key in KEYS.items():
        lowest, highest = (key.kind.schema.get(name) for name in ("minimum", "maximum"))
        if key.kind.schema["type"] == "integer":
            yield path, lambda number: number, f"from {lowest} to {highest}"
        elif key.kind.words.startswith("bytes as a quantity"):
            yield path, Quantity.of_bytes, f"{path}: .* is"


@pytest.mark.parametrize(("path", "written", "says"), [*_bounded()])
def test_both_bounds_are_the_last(path: str, written: Callable[[int], object], says: str) -> None:
    lowest, highest = KEYS[path].kind.schema["minimum"], KEYS[path].kind.schema["maximum"]
    for number in (lowest, highest):
        override(Config(), [f"{path}={written(number)}"])
    for number in (lowest - 1, highest + 1):
        with pytest.raises(ConfigError, match=says):
            override(Config(), [f"{path}={written(number)}"])


def test_both_bounds_of_a_period_are_accepted_and_nothing_beyond() -> None:
    for text in ("100ms", "24h"):
        override(Config(), [f"cpuManagerReconcilePeriod={text}"])
    for text in ("99ms", "24h1s"):
        with pytest.raises(ConfigError, match="is not between 100ms and 24h"):
            override(Config(), [f"cpuManagerReconcilePeriod={text}"])


@pytest.mark.parametrize("path", KEYS)
def test_a_misspelt_key_is_rejected_with_its_name(path: str) -> None:
    name = KEYS[path].name
    with pytest.raises(ConfigError, match=f'did you mean "{name}"'):
        override(Config(), [f"{path}x=1"])


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
