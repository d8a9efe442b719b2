"""What is shown of a configuration is a configuration, and meets the schema of one."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent.config.config import Config
from agent.config.errors import ConfigError
from agent.config.keys.root import CONFIGURATION
from agent.config.loader import load_config, override
from agent.config.shown import config_schema, config_yaml, yaml_text
from agent.parsing.nodes import MappingNode, Number, ScalarNode, SequenceNode, Unclear
from agent.parsing.reader import read_document
from tests.agent.config.test_loader import EVERYTHING
from tests.fuzz.configs import BASES, make_config

if TYPE_CHECKING:
    from random import Random

SCHEMA: Final = Draft202012Validator(json.loads(config_schema()))


def _values(node: object) -> object:
    """Return a document as JSON has it, its numbers as numbers."""
    if isinstance(node, MappingNode):
        return {key: _values(value) for key, value in node.entries.items()}
    if isinstance(node, SequenceNode):
        return [_values(item) for item in node.items]
    assert isinstance(node, ScalarNode)
    value = node.value
    assert not isinstance(value, Unclear)
    return json.loads(value.text) if isinstance(value, Number) else value


@pytest.mark.parametrize("text", ["{}", EVERYTHING, *BASES])
def test_what_is_shown_is_loaded_as_the_same_configuration(text: str) -> None:
    config = load_config(text, "x")
    assert load_config(config_yaml(config), "shown") == config


@given(st.randoms(use_true_random=False))
def test_whatever_is_accepted_is_shown_in_full_and_meets_the_schema(random: Random) -> None:
    text = make_config(random)
    try:
        config = load_config(text, "x")
    except ConfigError:
        return
    assert load_config(config_yaml(config), "shown") == config
    SCHEMA.validate(_values(read_document(text)))
    SCHEMA.validate(_values(read_document(config_yaml(config))))


def test_every_key_is_shown() -> None:
    shown = _values(read_document(config_yaml(Config())))
    for path, _, _ in CONFIGURATION.paths():
        value = shown
        for name in path.split("."):
            assert isinstance(value, dict)
            value = value[name]


@given(st.text() | st.text("0123456789._:-+exnayoNul~=#", max_size=8))
def test_a_text_is_quoted_where_a_reader_could_take_it_for_anything_else(text: str) -> None:
    with suppress(UnicodeEncodeError):
        text.encode()
        for shown in (yaml_text({"a": text}), yaml_text({"a": text}, one_line=True)):
            if not shown.startswith("{"):
                assert _values(read_document(shown)) == {"a": text}


def test_the_schema_is_one_of_draft_2020_12() -> None:
    Draft202012Validator.check_schema(json.loads(config_schema()))


@pytest.mark.parametrize("text", ["{}", "null", EVERYTHING, *BASES, config_yaml(Config())])
def test_the_schema_accepts_what_the_agent_accepts(text: str) -> None:
    SCHEMA.validate(_values(read_document(text)))


@pytest.mark.parametrize("path", [path for path, _, _ in CONFIGURATION.paths()])
def test_the_schema_accepts_a_key_without_a_value_as_the_agent_does(path: str) -> None:
    value: object = None
    for name in reversed(path.split(".")):
        value = {name: value}
    SCHEMA.validate(value)
    assert load_config(json.dumps(value), "x") == Config()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"cpuManagerPolcy": "static"}',
        '{"cpuManagerPolicy": "Static"}',
        '{"cpuManagerPolicyOptions": {"full-pcpu-only": "true"}}',
        '{"cpuManagerReconcilePeriod": 10}',
        '{"cpuManagerReconcilePeriod": "10 s"}',
        '{"memoryManagerPolicy": "BestEffort"}',
        '{"maxPods": -1}',
        '{"podsPerCore": "many"}',
        '{"systemReserved": {"cpus": 1}}',
        '{"systemReserved": {"cpu": "1x"}}',
        '{"systemReserved": ["cpu"]}',
        '{"evictionHard": {"memory.avail": "1Gi"}}',
        '{"evictionHard": {"memory.available": "x%"}}',
        '{"reservedMemory": [{"numaNode": 0}]}',
        '{"reservedMemory": [{"numaNode": -1, "limits": {}}]}',
        '{"reservedMemory": [{"numaNode": 0, "limits": {"cpu": 1}}]}',
        '{"featureGates": {"PodLevelResource": true}}',
        '{"featureGates": {"PodLevelResources": 1}}',
        '{"cgroupRoot": "a/b"}',
        '{"agent": {"metrics": {"Port": 1}}}',
        '{"agent": {"metrics": {"port": 65536}}}',
        '{"agent": {"metrics": {"address": "localhost"}}}',
        '{"agent": {"socketGroup": "a b"}}',
        '{"agent": {"limits": {"manifestBytes": 1}}}',
        '{"agent": {"devices": {"gpu": []}}}',
        '{"agent": {"devices": {"a.b/c": [{}]}}}',
        '{"agent": {"enforce": ["io"]}}',
        '{"agent": {"ignoredResources": ["cpu"]}}',
        '{"agent": {"ignoredResources": ["a.b/c", "a.b/c"]}}',
        '{"kind": "Pod"}',
    ],
)
def test_the_schema_rejects_what_the_agent_rejects(text: str) -> None:
    assert not SCHEMA.is_valid(json.loads(text))
    with pytest.raises(ConfigError):
        load_config(text, "x")


def test_settings_are_shown_in_effect() -> None:
    config = override(Config(), ["agent.metrics.port=9", "cpuManagerReconcilePeriod=90s"])
    assert "\n    port: 9\n" in config_yaml(config)
    assert "\ncpuManagerReconcilePeriod: 1m30s\n" in config_yaml(config)
