"""Who a manifest speaks of, as far as it says so, although it is no valid pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from agent.parsing.nodes import MappingNode, ScalarNode
from agent.pods.names import uid_fault

if TYPE_CHECKING:
    from agent.parsing.nodes import Node

#: No name or uid that Kubernetes allows is longer.
_LONGEST: Final = 253


class PodIdentity(Struct, frozen=True):
    """What a manifest states of its pod; "" for what it does not state, or not legibly."""

    uid: str = ""
    name: str = ""
    namespace: str = ""


NOBODY: Final = PodIdentity()


class Named(Protocol):
    """Whatever has a pod's name and namespace."""

    @property
    def name(self) -> str:
        """The pod's name."""

    @property
    def namespace(self) -> str:
        """The namespace that the name is in."""


def full_name(pod: Named) -> str:
    """Return `namespace/name`."""
    return f"{pod.namespace}/{pod.name}"


def identity_of(document: Node, default_namespace: str) -> PodIdentity:
    """Return whom a document speaks of; a pod that is named without a namespace is in the default.

    What is no uid names nobody, nor does a text that is longer than any name or could speak to a
    terminal.
    """
    entries = document.entries if isinstance(document, MappingNode) else {}
    metadata = entries.get("metadata")
    stated = metadata.entries if isinstance(metadata, MappingNode) else {}
    uid, name, namespace = (_text(stated.get(key)) for key in ("uid", "name", "namespace"))
    return PodIdentity(
        uid="" if uid_fault(uid) else uid,
        name=name,
        namespace=namespace or (default_namespace if name else ""),
    )


def _text(node: Node | None) -> str:
    text = node.value if isinstance(node, ScalarNode) else None
    if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
        return ""
    return text
