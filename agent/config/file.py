"""The configuration file: read to a `Config`, settings on the command line over it, and written.

The same reader serves both: it lays a document over a base. For a file the base is the defaults and
a mapping replaces the base's (as for the kubelet); for single settings the base is the
configuration so far and a mapping is added to the base's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import yaml
from msgspec.structs import replace

from agent.config.checks import find_problems
from agent.config.config import Config, ConfigError
from agent.config.keys.key import KeyReader, nullable
from agent.config.keys.root import CONFIGURATION
from agent.safe_files import read_bounded
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    Field,
    MappingNode,
    Mistake,
    Node,
    Plain,
    ScalarNode,
    UnreadableError,
    places,
    read_document,
    resolve,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from agent.config.keys.key import Section


_OF_KUBELET: Final = (
    "this may be a kubelet's configuration: 'numawarden config import FILE' makes the agent's of it"
)


def load_config(
    text: str | bytes, source: str, settings: Sequence[str] = (), *, max_bytes: int | None = None
) -> Config:
    """Return the configuration of a YAML or JSON text, with single settings laid over it.

    `settings` are `key=value` texts as for `override`; a mistake in the file that a setting
    corrects is not reported.
    Raises `ConfigError` with every mistake.
    """
    try:
        document = read_document(text, max_bytes=max_bytes or DEFAULT_MAX_BYTES)
    except UnreadableError as error:
        raise ConfigError(source, (error.problem,)) from error
    reader = KeyReader()
    config = CONFIGURATION.read(reader, Field("", document), Config())
    if any(problem.message.startswith("unknown key") for problem in reader.problems):
        version = Field("", document).child("apiVersion")
        if version is not None and (reader.text(version) or "").startswith("kubelet.config.k8s.io"):
            reader.problems.append(Mistake("", _OF_KUBELET))
    if not settings:
        return _checked(config, reader.problems, source, document)
    if reader.problems:
        raise ConfigError(source, _in_order(reader.problems))
    return _override(config, settings, f"{source} with {', '.join(settings)}")


def config_of_document(document: Node, source: str) -> Config:
    """Return the configuration of a document, or of a part of one that is laid out like it.

    Raises `ConfigError` with every mistake; paths begin at this document.
    """
    reader = KeyReader()
    config = CONFIGURATION.read(reader, Field("", document), Config())
    return _checked(config, reader.problems, source, document)


def load_config_file(path: Path, settings: Sequence[str] = ()) -> Config:
    """Return the configuration of a file. Raises `ConfigError` and `OSError`."""
    return load_config(read_bounded(path, DEFAULT_MAX_BYTES), str(path), settings)


def override(config: Config, settings: Sequence[str]) -> Config:
    """Return the configuration with single settings changed, later ones last.

    A setting is `key=value` or `section.key=value` with the names of the file and a YAML value:
    `cgroupDriver=cgroupfs`, `agent.metrics.port=9465`, `systemReserved.cpu=500m`. Raises
    `ConfigError` with every mistake.
    """
    return _override(config, settings, "settings")


def _override(config: Config, settings: Sequence[str], source: str) -> Config:
    document, problems = _document_of_settings(settings)
    if problems:
        raise ConfigError(source, tuple(problems))
    reader = KeyReader(merge=True)
    changed = CONFIGURATION.read(reader, Field("", document), config)
    # Settings stand on no line; the one within a single value would mislead.
    misread = [replace(problem, line=None) for problem in reader.problems]
    return _checked(changed, misread, source, MappingNode({}))


def _checked(config: Config, misread: Sequence[Mistake], source: str, document: Node) -> Config:
    unread = frozenset(_first_key(problem.path) for problem in misread)
    found = tuple(find_problems(config, unread))
    lines = places(document, [problem.path for problem in found])
    contradictions = (replace(problem, line=lines[problem.path]) for problem in found)
    problems = _in_order((*misread, *contradictions))
    if problems:
        raise ConfigError(source, problems)
    return config


def _first_key(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _in_order(problems: Iterable[Mistake]) -> tuple[Mistake, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _document_of_settings(
    settings: Iterable[str],
) -> tuple[MappingNode, list[Mistake]]:
    """Return a document with all settings in it, and what was no setting at all."""
    root: dict[str, Node] = {}
    problems: list[Mistake] = []
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            problems.append(
                Mistake("", f"{shown(setting)} is not a setting; write key=value, such as "
                        "cgroupDriver=systemd")
            )  # fmt: skip
            continue
        try:
            _put(root, _split(path), _value(value))
        except UnreadableError as error:
            problems.append(Mistake(path, error.problem.message))
    return MappingNode(root), problems


def _split(path: str) -> list[str]:
    """Split at the dots between known sections; names within a free mapping keep theirs."""
    parts: list[str] = []
    section: Section | None = CONFIGURATION
    while section is not None and "." in path:
        head, _, rest = path.partition(".")
        if head not in section.names:
            break
        parts.append(head)
        section, path = section.inner(head), rest
    return [*parts, path]


def _value(text: str) -> Node:
    return read_document(text) if text else ScalarNode("")


def _put(root: dict[str, Node], parts: list[str], value: Node) -> None:
    *sections, last = parts
    entries = root
    for section in sections:
        inner = entries.get(section)
        # A fresh copy: mappings of a document are not shared with the one that is built here.
        nested = dict(inner.entries) if isinstance(inner, MappingNode) else {}
        entries[section] = MappingNode(nested)
        entries = nested
    entries[last] = value


_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `agent.yaml` would not read as this text without quotes."""


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes the line breaks of YAML 1.1 (NEL, LS, PS) as they are, unless it escapes them.
    plain = resolve(text) == text and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text_node)


def config_keys(config: Config) -> dict[str, Plain]:
    """Return every key of a configuration with its value, as plain values of JSON."""
    return CONFIGURATION.written(config)


def config_yaml(config: Config) -> str:
    """Return a file with every key of a configuration, from which `load_config` makes an equal one.

    The values that are equal to the defaults are in it, too.
    """
    return yaml_text(config_keys(config))


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
