"""The keys of `agent.kubernetes`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from msgspec import Struct

from agent.config.keys.key import Key, KeyGroup, Section
from agent.config.keys.scalars import OptionalPath, Switch
from agent.config.model import KubernetesConfig
from agent.yaml import Field, Plain, shown

if TYPE_CHECKING:
    from agent.config.keys.key import KeyReader, Schema

#: The name of a node is a DNS subdomain (RFC 1123), as of every object of the cluster.
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_LONGEST_NAME: Final = 253


class NodeName(Struct, frozen=True):
    """The name of a node of the cluster, or an empty text."""

    words: ClassVar[str] = 'name of a node, or ""'

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the name."""
        text = reader.text(at)
        if text is None:
            return base
        if text and (len(text) > _LONGEST_NAME or not _NODE.fullmatch(text)):
            reader.reject(at, f"{shown(text)} is not the name of a node, such as worker-1")
        return text

    def written(self, value: str) -> Plain:
        """Return the name, or an empty text."""
        return value

    def schema(self) -> Schema:
        """Return a name or an empty text."""
        return {"type": "string", "pattern": f"^({_NODE.pattern})?$", "maxLength": _LONGEST_NAME}


class ServerUrl(Struct, frozen=True):
    """The URL of an API server, or an empty text; https only, since a token goes with a request."""

    words: ClassVar[str] = 'URL such as https://10.0.0.1:6443, or ""'

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the URL without a slash at its end."""
        text = reader.text(at)
        if text is None:
            return base
        if text and not _is_server(text):
            reader.reject(at, f"{shown(text)} is not a URL such as https://10.0.0.1:6443")
        return text.rstrip("/")

    def written(self, value: str) -> Plain:
        """Return the URL, or an empty text."""
        return value

    def schema(self) -> Schema:
        """Return a text that begins as such a URL, or an empty one."""
        return {"type": "string", "pattern": "^(https://[^ ]+)?$"}


def _is_server(text: str) -> bool:
    """Return whether a text is a URL with a host, and with nothing but a port and a path."""
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        url = urlsplit(text)
        usable = url.port is None or url.port > 0
    except ValueError:  # a port that is not one, or half of an IPv6 address
        return False
    more = url.query or url.fragment or url.username is not None
    return url.scheme == "https" and bool(url.hostname) and usable and not more


KUBERNETES: Final = Section(
    KubernetesConfig(),
    (
        KeyGroup(
            "The API server of a cluster",
            (
                Key(
                    "publishTopology",
                    Switch(),
                    since="0.1.0",
                    help="Whether the CPUs, memory and devices of each NUMA node are published as "
                    "a NodeResourceTopology, for the topology-aware scheduler. See "
                    "docs/node-topology.md.",
                ),
                Key(
                    "events",
                    Switch(),
                    since="0.1.0",
                    help="Whether a pod of the kubelet that the agent rejects gets an Event, which "
                    "kubectl describe shows.",
                ),
                Key(
                    "nodeName",
                    NodeName(),
                    since="0.1.0",
                    help='The name of this host as a node of the cluster; "" takes it from '
                    "$NODE_NAME, and else is the name of the host.",
                ),
                Key(
                    "server",
                    ServerUrl(),
                    since="0.1.0",
                    help='The URL of the API server; "" is the one that $KUBERNETES_SERVICE_HOST '
                    "and $KUBERNETES_SERVICE_PORT name in a pod.",
                ),
                Key(
                    "tokenFile",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file with the token of the agent's service account, which is read at "
                    'each request; "" is the credential kubernetes-token of the unit '
                    "(LoadCredential), and else the token of the pod.",
                ),
                Key(
                    "caFile",
                    OptionalPath(),
                    since="0.1.0",
                    help="A file with the certificate of the cluster's certificate authority in "
                    'PEM form; "" is the credential kubernetes-ca of the unit, and else the '
                    "certificate of the pod.",
                ),
            ),
        ),
    ),
)
