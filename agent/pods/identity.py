"""Names of pods, and the identity of the pod that a manifest names, even if it is not valid."""

from __future__ import annotations

import re
from typing import Final, Protocol

from msgspec import Struct

from agent.yaml import MappingNode, Node, ScalarNode

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(?:\.{_LABEL.pattern})*", re.ASCII)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_UID: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9](?:[-.A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)

_MAX_LABEL: Final = 63
_MAX_SUBDOMAIN: Final = 253
#: A uid becomes part of a file name and of a unit name, which end at 255 characters.
_MAX_UID: Final = 128

_LABEL_RULE: Final = (
    f"use at most {_MAX_LABEL} lower case letters, digits and '-', with a letter or digit at both "
    "ends"
)
_SUBDOMAIN_RULE: Final = (
    f"use at most {_MAX_SUBDOMAIN} lower case letters, digits, '-' and '.', with a letter or digit "
    "at both ends of each part"
)
_UID_RULE: Final = (
    f"use at most {_MAX_UID} letters, digits, '-' and single '.', with a letter or digit at both "
    "ends (a uid names a cgroup and a systemd unit)"
)
#: Resources whose names contain this are Kubernetes' own (IsPrefixedNativeResource).
_NATIVE: Final = "kubernetes.io/"
#: The API server makes names of quotas of extended resources, which have to be valid as well.
_QUOTA: Final = "requests."
_EXTENDED_RULE: Final = (
    "a container can have cpu, memory, ephemeral-storage, hugepages-<size> such as hugepages-2Mi, "
    "and extended resources named domain/name such as example.com/gpu"
)


def label_fault(text: str) -> str | None:
    """Return why a text is not a DNS label (RFC 1123), None when it is valid."""
    return None if len(text) <= _MAX_LABEL and _LABEL.fullmatch(text) else _LABEL_RULE


def subdomain_fault(text: str) -> str | None:
    """Return why a text is not a DNS subdomain (RFC 1123), None when it is valid."""
    fits = len(text) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text)
    return None if fits else _SUBDOMAIN_RULE


def uid_fault(text: str) -> str | None:
    """Return why a text is not accepted as a pod uid, None when it is accepted."""
    return None if len(text) <= _MAX_UID and _UID.fullmatch(text) else _UID_RULE


def extended_resource_fault(text: str) -> str | None:
    """Return why a text is not the name of an extended resource, None when it is."""
    if is_native_resource(text):
        return "resources of kubernetes.io are not extended resources"
    if text.startswith(_QUOTA) or not _is_prefixed(f"{_QUOTA}{text}"):
        return _EXTENDED_RULE
    return None


def prefixed_resource_fault(text: str) -> str | None:
    """Return why a text is not a resource name of the form `domain/name`, None when it is.

    Such names are extended resources or resources of kubernetes.io (ValidateContainerResourceName).
    """
    if is_native_resource(text) and _is_prefixed(text):
        return None
    return extended_resource_fault(text)


def is_native_resource(text: str) -> bool:
    """Return whether a name is in a domain of Kubernetes itself (IsPrefixedNativeResource)."""
    return _NATIVE in text


def _is_prefixed(text: str) -> bool:
    """Return whether a text is a qualified name with a domain (IsQualifiedName)."""
    domain, slash, name = text.partition("/")
    if not slash or subdomain_fault(domain):
        return False
    return len(name) <= _MAX_LABEL and _QUALIFIED.fullmatch(name) is not None


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
