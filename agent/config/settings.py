"""Which keys a configuration has, and single settings from the command line as one document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from agent.parsing.errors import Mistake
from agent.parsing.nodes import MappingNode, ScalarNode, shown
from agent.parsing.reader import UnreadableError, read_document

if TYPE_CHECKING:
    import collections.abc

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
            _put(root, _split(path, KEYS), _value(value))
        except UnreadableError as error:
            problems.append(Mistake(path, error.problem.message))
    return MappingNode(root), problems


def _split(path: str, keys: Keys) -> list[str]:
    """Split at the dots between known sections; names within a free mapping keep theirs."""
    parts: list[str] = []
    section: Keys | None = keys
    while section and "." in path:
        head, _, rest = path.partition(".")
        if head not in section:
            break
        parts.append(head)
        section, path = section[head], rest
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


#: The keys of a section and the keys within each; no keys where names are free or it is a value.
Keys: TypeAlias = "dict[str, Keys]"

_AGENT: Final[Keys] = {
    "stateDirectory": {},
    "socketPath": {},
    "socketGroup": {},
    "sysfsRoot": {},
    "cgroupMount": {},
    "enforce": {},
    "metrics": {"address": {}, "port": {}, "tlsCertificate": {}, "tlsKey": {}},
    "logging": {"format": {}, "level": {}},
    "limits": {"manifestBytes": {}, "messageBytes": {}},
    "devices": {},
    "ignoredResources": {},
}

KEYS: Final[Keys] = {
    "apiVersion": {},
    "kind": {},
    "cpuManagerPolicy": {},
    "cpuManagerPolicyOptions": {},
    "cpuManagerReconcilePeriod": {},
    "memoryManagerPolicy": {},
    "reservedMemory": {},
    "topologyManagerPolicy": {},
    "topologyManagerScope": {},
    "topologyManagerPolicyOptions": {},
    "reservedSystemCPUs": {},
    "systemReserved": {},
    "kubeReserved": {},
    "evictionHard": {},
    "maxPods": {},
    "podsPerCore": {},
    "featureGates": {},
    "cgroupDriver": {},
    "cgroupRoot": {},
    "staticPodPath": {},
    "agent": _AGENT,
}

DEVICE_KEYS: Final = ("id", "numaNodes", "healthy")

RESERVED_MEMORY_KEYS: Final = ("numaNode", "limits")
