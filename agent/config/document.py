"""A configuration as others read it: a YAML file, plain values of JSON, the schema of a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from agent.config import keys
from agent.config.kinds import nullable
from agent.config.model import Config
from agent.yaml import Plain, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def config_keys(config: Config) -> dict[str, Plain]:
    """Return every key of a configuration with its value, as plain values of JSON."""
    return keys.written(config)


def config_yaml(config: Config) -> str:
    """Return a file with every key of a configuration, from which `load_config` makes an equal one.

    Keys that have their defaults are in the file, too.
    """
    return yaml_text(config_keys(config))


def differing_keys(
    one: Mapping[str, Plain], other: Mapping[str, Plain], above: str = ""
) -> Iterator[tuple[str, Plain, Plain]]:
    """Yield the path of each key that differs between two results of `config_keys`, and its values.

    The paths begin with `above`.
    """
    for key in dict.fromkeys((*one, *other)):
        first, second = one.get(key), other.get(key)
        if isinstance(first, dict) and isinstance(second, dict):
            yield from differing_keys(first, second, f"{above}{key}.")
        elif first != second:
            yield f"{above}{key}", first, second


def yaml_text(value: Plain, *, one_line: bool = False) -> str:
    """Return a value as YAML, its mappings in their order; on one line without a line break."""
    width = 1 << 20 if one_line else 100
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=one_line,
        width=width,
    )
    return text.removesuffix("\n").removesuffix("\n...") if one_line else text


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `agent.yaml` would read as something else without quotes."""


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes the line breaks of YAML 1.1 (NEL, LS, PS) as they are, unless it escapes them.
    plain = resolve(text) == text and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text_node)


def config_schema() -> str:
    """Return a JSON schema (draft 2020-12) of a configuration file.

    Every file that the agent accepts meets the schema. The reverse does not hold: what has to agree
    with another key or with the host is judged by `numawarden config check`.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of numawarden",
        **nullable(keys.schema(Config)),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False)
