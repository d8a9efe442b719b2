"""Single settings from the command line as one document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.keys.root import CONFIGURATION
from agent.parsing.errors import Mistake
from agent.parsing.nodes import MappingNode, ScalarNode, shown
from agent.parsing.reader import UnreadableError, read_document

if TYPE_CHECKING:
    import collections.abc

    from agent.config.keys.key import Section
    from agent.parsing.nodes import Node


def document_of_settings(
    settings: collections.abc.Iterable[str],
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
