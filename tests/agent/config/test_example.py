"""The commented example is the reference of every key."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from agent.config.keys import paths
from agent.config.load import load_config_file
from agent.config.model import Config
from agent.config.notes import notes_on
from agent.yaml import plain, read_document
from tests.docs.reference import CHANGED

EXAMPLE = Path(__file__).parents[3] / "deploy" / "config.yaml"
_CHANGED = CHANGED.keys() - {"evictionHard"}
_CHANGED_FIELDS = {re.sub("([A-Z])", r"_\1", key).lower() for key in _CHANGED if "." not in key}


def test_the_example_loads_without_a_note() -> None:
    config = load_config_file(EXAMPLE)
    assert not list(notes_on(config))
    assert config.gates.pod_level_resource_managers


def test_every_key_is_in_the_example() -> None:
    document = plain(read_document(EXAMPLE.read_bytes()))
    for path, _ in paths(Config):
        value = document
        for key in path.split("."):
            assert isinstance(value, dict)
            assert key in value, path
            value = value[key]


def test_whatever_the_example_does_not_change_is_the_default() -> None:
    config, default = load_config_file(EXAMPLE), Config()
    # Only memory.available is in the example; the other signals are the kubelet's business.
    assert config.eviction_hard.items() <= default.eviction_hard.items()
    on = replace(default.agent, isolation=replace(default.agent.isolation, host_slices=True))
    changed = {name: getattr(config, name) for name in _CHANGED_FIELDS}
    same = replace(default, agent=on, **changed)
    assert replace(config, eviction_hard=default.eviction_hard) == same


def test_what_the_example_changes_differs_from_the_default_that_it_names() -> None:
    text = EXAMPLE.read_text()
    for key in _CHANGED:
        name = key.rpartition(".")[2]
        comment, value = re.findall(rf"# default: (.*)\n *{name}:(.*)", text)[0]
        assert comment.strip('"') != value.strip(), key


#: Sections and the keys within example values have no default of their own; a pair shares one.
_NO_DEFAULT = {
    *("apiVersion", "kind", "agent", "metrics", "podResources", "logging", "limits", "tlsKey"),
    *("devicePlugins", "history", "kubelet", "kubernetes", "isolation"),
    *("cpu", "memory", "PodLevelResources", "PodLevelResourceManagers"),
}


def test_every_key_has_its_default_in_words() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for number, line in enumerate(lines):
        match = re.match(r" *([A-Za-z]+):", line)
        if match and match[1] not in _NO_DEFAULT:
            assert "default:" in "".join(lines[max(number - 3, 0) : number]), line
