"""Kinds of texts: versions, CPUs and nodes, paths, names, addresses, and lists of names.

Each row is a constant that a key names. An empty text says that a key is unset, as in the kubelet's
file: with `or_base` the value is then that of the base, with `or_empty` the value that is named
there (`None`, `""`). With `amount` a number that is written without quotes is taken as its text;
`written` makes the value that a file has, where that is not the text of the value.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agent.config.kinds import list_of_names, matching, meanings_of, or_base, or_empty, text_kind
from agent.pods.model import MEMORY, extended_resource_fault, prefixed_resource_fault
from agent.pods.validation import resource_name_fault
from agent.yaml import shown
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.config.kinds import Kind, Member, Schema


def version_of(choices: Iterable[Member]) -> Kind[Member]:
    """Return the kind of one of the choices, as of `one_of`; 1.37 is the same as v1.37."""
    by_number = {choice.removeprefix("v"): choice for choice in choices}
    names = ", ".join(by_number.values())

    def parse(text: str) -> Member:
        choice = by_number.get(text.removeprefix("v"))
        if choice is None:
            raise ValueError(f"{shown(text)} is not one of {names}")
        return choice

    schema = {
        "type": ["string", "number"],
        "pattern": f"^v?({'|'.join(map(re.escape, by_number))})$",
        "examples": [str(choice) for choice in choices],
    }
    return text_kind(f"one of {names}", schema, parse, amount=True, meanings=meanings_of(choices))


def _mask_list(things: str) -> Kind[Mask]:
    """Return the kind of a set as the kernel lists it; a single number is a list as well."""
    words = f"list of {things} such as 0-1,8"

    def parse(text: str) -> Mask:
        try:
            return Mask.parse(text)
        except ValueError as error:
            raise ValueError(f"{shown(text)} is not a {words}: {error}") from error

    return text_kind(words, {"type": ["string", "integer"], "minimum": 0}, parse, amount=True)


CPU_LIST: Final = or_empty(_mask_list("CPUs"), None)
NODE_LIST: Final = or_empty(_mask_list("nodes"), EMPTY)


_ABSOLUTE: Final[Schema] = {"type": "string", "pattern": "^/"}


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise ValueError(f"{shown(text)} is not an absolute path without '..'")
    return path


def _path_within(longest: int, too_long: str) -> Kind[Path]:
    """Return the kind of an absolute path of at most so many bytes."""

    def parse(text: str) -> Path:
        path = _absolute(text)
        if len(text.encode()) > longest:
            raise ValueError(too_long)
        return path

    # A path has at least as many bytes as characters.
    schema = {**_ABSOLUTE, "maxLength": longest}
    return text_kind(f"absolute path of at most {longest} bytes", schema, parse)


_PATH: Final = text_kind("absolute path", _ABSOLUTE, _absolute)
#: sun_path of a Unix socket address holds 108 bytes, the closing zero included.
_SOCKET: Final = _path_within(107, "the path of a socket has at most 107 bytes")

PATH: Final = or_base(_PATH)
OPTIONAL_PATH: Final = or_empty(_PATH, None)
SOCKET: Final = or_base(_SOCKET)
OPTIONAL_SOCKET: Final = or_empty(_SOCKET, None)
#: A directory leaves room for `kubelet.sock`, and for a plugin's file name of a usual length, in
#: the 107 bytes of a socket (unix(7)).
SOCKET_DIRECTORY: Final = or_base(
    _path_within(
        64,
        "the path of a directory of sockets has at most 64 bytes, since the kernel allows 107 for "
        "a socket's",
    )
)
#: An empty text is the root.
CGROUP: Final[Kind[str]] = text_kind(
    "absolute path within the cgroup file system",
    {"type": "string", "pattern": "^(/.*)?$"},
    lambda text: str(_absolute(text or "/")),
)


_FRACTION: Final = re.compile(r"[01](\.[0-9]{0,9})?|\.[0-9]{1,9}", re.ASCII)


def _fraction(text: str) -> float:
    fraction = float(text) if _FRACTION.fullmatch(text) else 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f'{shown(text)} is not above 0 and at most 1, such as 0.9, nor ""')
    return fraction


FRACTION: Final = or_empty(
    text_kind(
        "number above 0 and at most 1",
        {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 1},
        _fraction,
        written=float,
        amount=True,
    ),
    None,
)


USER_GROUP: Final = or_empty(
    matching("name of a group", r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}\$?"), None
)

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: A DNS subdomain (RFC 1123) of at most 253 characters, as Kubernetes has the names of nodes.
NODE_NAME: Final = or_empty(
    matching("name of a node, such as worker-1", rf"(?!.{{254}}){_LABEL}(\.{_LABEL})*"), ""
)


def _extended_resource(name: str) -> str:
    fault = extended_resource_fault(name)
    if fault is not None:
        raise ValueError(f"{shown(name)} is not an extended resource: {fault}")
    return name


OPTIONAL_RESOURCE: Final = or_empty(
    text_kind(
        "extended resource such as example.com/name",
        {"type": "string", "pattern": "^[^/]+/[^/]+$"},
        _extended_resource,
    ),
    "",
)


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"{shown(text)} is not an IP address such as 127.0.0.1 or ::1") from None


#: An address of version 4 or 6, with the zone of a link or without; kept in its canonical text.
IP_ADDRESS: Final[Kind[str]] = text_kind(
    "IP address", {"type": "string", "pattern": "^([0-9.]+|[0-9A-Fa-f:.]+(%.+)?)$"}, _ip_address
)

#: The address of a page, with a host name or an IP address. A user or a query would be a secret
#: in the configuration.
HTTPS_ADDRESS: Final = or_empty(
    matching(
        "https address",
        r"https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/[A-Za-z0-9._~/-]*",
        "like https://127.0.0.1:10250/pods",
    ),
    "",
)


#: Any printable ASCII but `?` and `#`, which begin a query and a fragment.
_URL: Final = re.compile(r'https://[!"$->@-~]+')


def _server(text: str) -> str:
    try:
        url = urlsplit(text)
        port_is_valid = url.port != 0 and not url.netloc.endswith(":")
        is_server = url.hostname and port_is_valid and url.username is None
    except ValueError:  # a port that is not one, or half of an IPv6 address
        is_server = False
    if not is_server or not _URL.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a URL such as https://10.0.0.1:6443")
    return text.rstrip("/")


#: An API server with nothing but a port and a path, without a slash at the end. A token goes with
#: a request, so https only.
SERVER_URL: Final = or_empty(
    text_kind(
        "URL such as https://10.0.0.1:6443",
        {"type": "string", "pattern": f"^{_URL.pattern}$"},
        _server,
    ),
    "",
)


_CGROUP_NAME: Final = re.compile(r"[^/*\x00-\x1f\x7f]{1,255}\*?")


def _cgroup_fault(name: str) -> str | None:
    if _CGROUP_NAME.fullmatch(name):
        return None
    return "is neither the name of a cgroup nor the beginning of one and *"


#: Names of cgroups; one that ends in `*` stands for all that begin so.
CGROUP_NAMES: Final = list_of_names(
    "list of cgroups such as ovs.slice or lxc.*", f"^{_CGROUP_NAME.pattern}$", _cgroup_fault
)


def _ignorable_fault(name: str) -> str | None:
    # A host may not show how much memory a node has; then the agent cannot say what fits.
    if name == MEMORY:
        return None
    fault = prefixed_resource_fault(name)
    if fault is not None and resource_name_fault(name) is None:
        fault = "it is the node's own; others provide extended resources such as example.com/gpu"
    return None if fault is None else f"cannot be ignored: {fault}"


#: Resources that something else provides.
IGNORED_RESOURCES: Final = list_of_names(
    "list of resources", "^(memory|[^/]+/[^/]+)$", _ignorable_fault
)
