"""A pod as the kubelet reports it: what it is called, how far it has got, what it asks for.

Whatever form a report has (protobuf, JSON), its specification becomes the same document, cut to
the fields that `agent.pods.manifest` reads, so that there is one reading of a pod.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from agent.pods.manifest import pod_from_document
from agent.pods.model import LONGEST_NAME, ManifestError, PodIdentity, uid_fault
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.pods.model import Pod
    from agent.yaml import Plain

#: Phases in which no container of a pod runs or will run (v1.PodPhase).
_TERMINAL: Final = frozenset({"Failed", "Succeeded"})


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The longest pod that is read, in bytes: an API server stores 1.5 MiB at most.
_LONGEST_POD: Final = 4 << 20
#: What is nested more deeply is not looked at; a pod's own fields are nested half as deeply.
_DEEPEST: Final = 48
#: A string of JSON, to the end where it is not closed, or a bracket.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
#: An escape of a string; a surrogate without the other of its pair is `lone`.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>u[dD][89a-fA-F]..)|.)", re.DOTALL
)


class PodsUnavailableError(Exception):
    """One way to the kubelet's pods does not work: `way` names it, `found` says why.

    `expected`: its socket does not exist, which alone is not a fault. `code` is gRPC's name of the
    status, "" without one.
    """

    def __init__(self, way: str, found: str, *, expected: bool = False, code: str = "") -> None:
        super().__init__(f"{way}: {found}")
        self.way = way
        self.found = found
        self.expected = expected
        self.code = code


class UnreadablePodError(Exception):
    """One pod of the kubelet cannot be read; `uid` is "" where not even that is known."""

    def __init__(self, found: str, uid: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.uid = uid


class SpecificationUnknownError(Exception):
    """A pod runs whose specification no way reports."""


class ReportedPod(Struct, frozen=True):
    """One pod as a kubelet reports it.

    `specification` is what `agent.pods.manifest` reads, not validated yet. `terminal`: its phase is
    Failed or Succeeded. `deleting`: the API server is asked to delete the pod. `running`: a
    container of it runs.
    """

    uid: str
    name: str
    namespace: str
    specification: Plain
    terminal: bool = False
    deleting: bool = False
    running: bool = False

    @property
    def over(self) -> bool:
        """Whether no container of the pod runs or will run, so that it needs no resources."""
        return self.terminal or (self.deleting and not self.running)


class ReportedPods(Struct, frozen=True):
    """All pods that a kubelet reports at one moment, and why others of them are unreadable."""

    pods: tuple[ReportedPod, ...] = ()
    unreadable: tuple[UnreadablePodError, ...] = ()


def is_terminal(phase: str) -> bool:
    """Return whether no container of a pod in this phase runs or will run."""
    return phase in _TERMINAL


def checked_uid(uid: str) -> str:
    """Return a uid that can be used as one; raises `UnreadablePodError`."""
    if not uid:
        raise UnreadablePodError("it has no uid")
    if uid_fault(uid) is not None:
        raise UnreadablePodError("its uid is not one of Kubernetes")
    return uid


def pod_of(reported: ReportedPod, source: str, *, pod_level: bool) -> Pod:
    """Return the defaulted and validated pod; `source` names it in errors.

    `pod_level` is the gate PodLevelResources. Raises `ManifestError` with every mistake.
    """
    try:
        return pod_from_document(reported.specification, source, pod_level=pod_level)
    except ManifestError as error:
        error.identity = PodIdentity(reported.uid, reported.name, reported.namespace)
        raise


class _Metadata(Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    deletion_timestamp: str | None = None


class _State(Struct, frozen=True):
    running: dict[str, Any] | None = None


class _ContainerStatus(Struct, frozen=True):
    state: _State | None = None


class _Status(Struct, frozen=True, rename="camel"):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Pod(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


class _PodList(Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None


#: The fields that are kept: of a mapping those named, of a list those of each item, and all of what
#: has no fields here.
_Kept: TypeAlias = "Mapping[str, _Kept]"
_ALL: Final[_Kept] = MappingProxyType({})
_AMOUNTS: Final[_Kept] = MappingProxyType({"requests": _ALL, "limits": _ALL})
_CONTAINER: Final[_Kept] = MappingProxyType(
    {"name": _ALL, "resources": _AMOUNTS, "restartPolicy": _ALL}
)
_SPECIFICATION: Final[_Kept] = MappingProxyType(
    {
        "metadata": MappingProxyType(
            {"uid": _ALL, "name": _ALL, "namespace": _ALL, "annotations": _ALL}
        ),
        "spec": MappingProxyType(
            {
                "containers": _CONTAINER,
                "initContainers": _CONTAINER,
                "resources": _AMOUNTS,
                "overhead": _ALL,
            }
        ),
    }
)


def read_list(data: bytes, most: int) -> ReportedPods:
    """Return the pods of a v1.PodList in JSON, of which it may have `most`.

    A pod that cannot be read does not affect the others. Raises `UnreadablePodError` if the whole
    answer cannot be read.
    """
    try:
        try:
            items = msgspec.json.decode(data, type=_PodList).items or ()
        except _UNREADABLE:
            # One value of one pod, such as a managed field of thousands of levels, suffices.
            items = msgspec.json.decode(_mended(data), type=_PodList).items or ()
    except _UNREADABLE as error:
        raise UnreadablePodError(f"the answer is not a list of pods ({error})") from error
    if len(items) > most:
        raise UnreadablePodError(f"the answer has {len(items)} pods, which are more than {most}")
    pods, unreadable = list[ReportedPod](), list[UnreadablePodError]()
    for item in items:
        try:
            pods.append(read_json(bytes(item)))
        except UnreadablePodError as error:
            unreadable.append(error)
    return ReportedPods(tuple(pods), tuple(unreadable))


def _mended(data: bytes) -> bytes:
    """Return JSON with null for what is nested too deeply, and without halves of surrogate pairs.

    Its cost is linear; what is not JSON stays so.
    """
    parts, at, depth = list[bytes](), 0, 0
    for token in _TOKEN.finditer(data):
        match token[0][:1]:
            case b'"':
                if depth <= _DEEPEST and b"\\u" in token[0]:
                    parts += (data[at : token.start()], _ESCAPE.sub(_paired, token[0]))
                    at = token.end()
            case b"{" | b"[":
                depth += 1
                if depth == _DEEPEST + 1:
                    parts += (data[at : token.start()], b"null")
            case _:
                if depth == _DEEPEST + 1:
                    at = token.end()
                depth -= 1
    parts.append(data[at:] if depth <= _DEEPEST else b"")
    return b"".join(parts).decode(errors="replace").encode()


def _paired(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["lone"] else escape[0]


def read_json(data: bytes) -> ReportedPod:
    """Return one v1.Pod in JSON; raises `UnreadablePodError`."""
    uid = ""
    try:
        pod = msgspec.json.decode(data, type=_Pod)
        uid = checked_uid(pod.metadata.uid)
        if len(data) > _LONGEST_POD:  # its values would take many times as much memory
            found = f"it has {len(data)} bytes, more than any pod of an API server"
            raise UnreadablePodError(found, uid)
        document = msgspec.json.decode(data)
    except _UNREADABLE as error:
        raise UnreadablePodError(f"it is not a pod ({error})", uid) from error
    statuses = (
        *(pod.status.container_statuses or ()),
        *(pod.status.init_container_statuses or ()),
    )
    running = any(each.state is not None and each.state.running is not None for each in statuses)
    return ReportedPod(
        uid=uid,
        name=printable(pod.metadata.name, LONGEST_NAME),
        namespace=printable(pod.metadata.namespace, LONGEST_NAME),
        specification=_cut(document, _SPECIFICATION),
        terminal=is_terminal(pod.status.phase),
        deleting=pod.metadata.deletion_timestamp is not None,
        running=running,
    )


def _cut(value: Plain, kept: _Kept) -> Plain:
    if not kept:
        return value
    if isinstance(value, list):
        return [_cut(item, kept) for item in value]
    if isinstance(value, dict):
        return {key: _cut(value[key], inner) for key, inner in kept.items() if key in value}
    return value
