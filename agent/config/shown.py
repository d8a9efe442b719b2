"""A configuration as text: as YAML with every key, and the JSON schema of its file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import yaml

from agent.config.keys.key import nullable
from agent.config.keys.root import CONFIGURATION
from agent.parsing.scalars import resolve

if TYPE_CHECKING:
    from agent.config.config import Config
    from agent.parsing.nodes import Plain

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `agent.parsing` would not read as this text without quotes."""


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if resolve(text) == text else '"'
    )


_Dumper.add_representer(str, _text_node)


def config_yaml(config: Config) -> str:
    """Return a file with every key of a configuration, from which `load_config` makes an equal one.

    The values that are equal to the defaults are in it, too.
    """
    return yaml_text(CONFIGURATION.written(config))


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


def config_schema() -> str:
    """Return a JSON schema (draft 2020-12) of a configuration file.

    Every file that the agent accepts meets the schema. The reverse does not hold: what has to agree
    with another key or with the host is judged by `numawarden config check`.
    """
    schema = {
        "$schema": _DIALECT,
        "title": "Configuration of numawarden",
        **nullable(CONFIGURATION.schema()),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False)
