"""The identity of the pod that a manifest names, even if the manifest is not valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from agent.parsing.document import MappingNode, ScalarNode
from agent.pods.names import uid_fault

if TYPE_CHECKING:
    from agent.parsing.document import Node

#: No name or uid that Kubernetes allows is longer.
_LONGEST: Final = 253


class PodIdentity(Struct, frozen=True):
    """Uid, name and namespace that a manifest states; "" if missing or unreadable."""

    uid: str = ""
    name: str = ""
    namespace: str = ""


NO_IDENTITY: Final = PodIdentity()


class Named(Protocol):
    """Whatever has a pod's uid, name and namespace."""

    @property
    def uid(self) -> str:
        """The pod's uid."""

    @property
    def name(self) -> str:
        """The pod's name, "" if only its uid is known."""

    @property
    def namespace(self) -> str:
        """The namespace that the name is in."""


def full_name(pod: Named) -> str:
    """Return `namespace/name`, or `uid <uid>` for a pod whose name is not known."""
    return f"{pod.namespace}/{pod.name}" if pod.name else f"uid {pod.uid}"


def name_and_uid(pod: Named) -> str:
    """Return `namespace/name (uid <uid>)`, or `uid <uid>` for a pod whose name is not known."""
    return f"{full_name(pod)} (uid {pod.uid})" if pod.name else full_name(pod)


def identity_of(document: Node, default_namespace: str) -> PodIdentity:
    """Return the identity that a document states; without a namespace, the default namespace.

    An invalid uid is ignored, as is a text that is longer than any name or has control characters
    for a terminal.
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
