"""From the text of a configuration file, and settings on the command line, to a `Config`.

The same reader serves both: it lays a document over a base. For a file the base is the defaults and
a mapping replaces the base's (as for the kubelet); for single settings the base is the
configuration so far and a mapping is added to the base's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.config.checks import find_problems
from agent.config.config import Config
from agent.config.errors import ConfigError
from agent.config.keys.key import KeyReader
from agent.config.keys.root import CONFIGURATION
from agent.config.settings import document_of_settings
from agent.parsing.fields import Field
from agent.parsing.nodes import MappingNode, places
from agent.parsing.reader import DEFAULT_MAX_BYTES, UnreadableError, read_document
from agent.safe_files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from agent.parsing.errors import Mistake
    from agent.parsing.nodes import Node


def load_config(
    text: str | bytes, source: str, settings: Sequence[str] = (), *, max_bytes: int | None = None
) -> Config:
    """Return the configuration of a YAML or JSON text, with single settings laid over it.

    `settings` are `key=value` texts as for `override`; a mistake that they put right is none.
    Raises `ConfigError` with every mistake.
    """
    try:
        document = read_document(text, max_bytes=max_bytes or DEFAULT_MAX_BYTES)
    except UnreadableError as error:
        raise ConfigError(source, (error.problem,)) from error
    reader = KeyReader()
    config = CONFIGURATION.read(reader, Field("", document), Config())
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
    document, problems = document_of_settings(settings)
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
