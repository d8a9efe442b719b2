"""A configuration from a file, with single settings of the command line laid over the file.

The same reader serves both: it lays a document over a base. For a file the base is the defaults,
and a mapping replaces that of the base, as for the kubelet. For settings the base is the
configuration so far, and entries of a mapping are added. Out comes a `Config` without
contradictions, or a `ConfigError` with every mistake, its path and its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config import keys
from agent.config.checks import find_problems
from agent.config.kinds import KeyReader
from agent.config.model import Config, ConfigError
from agent.files import read_bounded
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    Field,
    MappingNode,
    Mistake,
    Node,
    ScalarNode,
    UnreadableError,
    places,
    read_document,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from agent.config.keys import Section

_OF_KUBELET: Final = (
    "this may be a kubelet's configuration: 'numawarden config import FILE' makes the agent's of it"
)


def load_config(
    text: str | bytes, source: str, settings: Sequence[str] = (), *, max_bytes: int | None = None
) -> Config:
    """Return the configuration of a YAML or JSON text, with settings as of `override` laid over it.

    `source` names the text in errors. A contradiction that a setting resolves is not reported.
    Raises `ConfigError` with every mistake.
    """
    try:
        document = read_document(text, max_bytes=max_bytes or DEFAULT_MAX_BYTES)
    except UnreadableError as error:
        raise ConfigError(source, (error.problem,)) from error
    config, mistakes = _read(document)
    _hint_at_import(document, mistakes)
    if not settings:
        return _checked(config, mistakes, source, document)
    if mistakes:
        raise ConfigError(source, _in_order(mistakes))
    return _override(config, settings, f"{source} with {', '.join(settings)}")


def load_config_file(path: Path, settings: Sequence[str] = ()) -> Config:
    """Return the configuration of a file. Raises `ConfigError` and `OSError`."""
    return load_config(read_bounded(path, DEFAULT_MAX_BYTES), str(path), settings)


def config_of_document(document: Node, source: str) -> Config:
    """Return the configuration of a document that has been read. Raises `ConfigError`."""
    return _checked(*_read(document), source, document)


def override(config: Config, settings: Sequence[str]) -> Config:
    """Return the configuration with single settings changed, later ones last.

    A setting is `key=value` or `section.key=value` with the names of the file and a YAML value:
    `cgroupDriver=cgroupfs`, `agent.metrics.port=9465`, `systemReserved.cpu=500m`. Raises
    `ConfigError` with every mistake.
    """
    return _override(config, settings, "settings")


def _read(document: Node) -> tuple[Config, list[Mistake]]:
    reader = KeyReader()
    return keys.read(reader, Field("", document), Config()), reader.problems


def _hint_at_import(document: Node, mistakes: list[Mistake]) -> None:
    """Add the way to import a kubelet's own file to its first unknown key."""
    version = Field("", document).child("apiVersion")
    if version is None or not str(version.value).startswith("kubelet.config.k8s.io"):
        return
    for number, mistake in enumerate(mistakes):
        if mistake.message.startswith("unknown key"):
            message = f"{mistake.message}; {_OF_KUBELET}"
            mistakes[number] = replace(mistake, message=message)
            return


def _override(config: Config, settings: Sequence[str], source: str) -> Config:
    document, malformed = _document_of_settings(settings)
    if malformed:
        raise ConfigError(source, tuple(malformed))
    reader = KeyReader(merge=True)
    changed = keys.read(reader, Field("", document), config)
    # A line counted within the value of one setting would mislead.
    mistakes = [replace(mistake, line=None) for mistake in reader.problems]
    return _checked(changed, mistakes, source, MappingNode({}))


def _checked(config: Config, mistakes: Sequence[Mistake], source: str, document: Node) -> Config:
    """Return the configuration; raise `ConfigError` with the mistakes and all contradictions."""
    # The keys of `Config` with a mistake: `agent` for agent.metrics.port.
    unread = frozenset(mistake.path.replace("[", ".").partition(".")[0] for mistake in mistakes)
    contradictions = find_problems(config, unread)
    lines = places(document, [problem.path for problem in contradictions])
    placed = (replace(problem, line=lines[problem.path]) for problem in contradictions)
    problems = _in_order((*mistakes, *placed))
    if problems:
        raise ConfigError(source, problems)
    return config


def _in_order(problems: Iterable[Mistake]) -> tuple[Mistake, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _document_of_settings(settings: Iterable[str]) -> tuple[MappingNode, list[Mistake]]:
    """Return a document of all settings, and the texts that are no settings as mistakes."""
    root: dict[str, Node] = {}
    malformed: list[Mistake] = []
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals or not path:
            why = "is not a setting; write key=value, such as cgroupDriver=systemd"
            malformed.append(Mistake("", f"{shown(setting)} {why}"))
            continue
        try:
            _put(root, _split(path), read_document(value) if value else ScalarNode(""))
        except UnreadableError as error:
            malformed.append(Mistake(path, error.problem.message))
    return MappingNode(root), malformed


def _split(path: str) -> list[str]:
    """Split a path at the dots after sections; dots in a name such as example.com/gpu stay."""
    parts: list[str] = []
    section: type[Section] | None = Config
    while section is not None and "." in path:
        head, _, rest = path.partition(".")
        key = next((key for key in section.keys if key.name == head), None)
        if key is None:
            break
        parts.append(head)
        section, path = key.inner, rest
    return [*parts, path]


def _put(root: dict[str, Node], parts: list[str], value: Node) -> None:
    """Put a value into a document; its mappings are copied, since a setting may share them."""
    *sections, last = parts
    entries = root
    for section in sections:
        inner = entries.get(section)
        nested = dict(inner.entries) if isinstance(inner, MappingNode) else {}
        entries[section] = MappingNode(nested)
        entries = nested
    entries[last] = value
