"""The content of a checkpoint: ledger, bindings, and the host and policy they were valid for.

`encode` and `decode` make a document of it and the reverse; what can be wrong with one, with its
directory, or while it is written, is an error here. The document is JSON on one line:
`{"format":"numawarden-checkpoint","version":2,"checksum":"sha256:...","state":{...}}`. The
checksum is over the bytes of the value of `state`, exactly as in the file, so that any change of
them is found. This frame is that of every format; `version` says what `state` looks like.

`state` has the ledger's own values (`agent.values.Saved`) as msgspec writes them. Sets of ids are
texts in the kernel's list format, a hint is `[nodes as bits, preferred]`, and what equals its
default may be left out. Fields may be added without a new version: a file without them has their
defaults, and a release that does not know them leaves them alone. It writes those of the state
again as they were, and those of a pod until the allocation of the pod changes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, cast

import msgspec
from msgspec import Raw
from msgspec.structs import asdict, replace

from agent.config.gates import GATES
from agent.config.policy_options import PREFER_CLOSEST
from agent.managers.allocation import PodAllocation, Source  # noqa: TC001  # msgspec reads
from agent.managers.bindings import NO_BINDINGS, Bindings
from agent.managers.cordons import NO_CORDONS, Cordons
from agent.managers.ledger import Ledger
from agent.managers.memory.state import NodeMemory, memory_charge
from agent.managers.policy import IsolationMode
from agent.managers.registry import MANAGERS
from agent.managers.versions import OLDEST
from agent.pods.model import MEMORY, Placement
from agent.values import Name, Saved, Size, plain
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.managers.policy import Policy
    from sysfs.host import Host, Node


_OPTIONS: Final = "cpuManagerPolicyOptions"
_TOPOLOGY_OPTIONS: Final = "topologyManagerPolicyOptions"
_GATES: Final = "featureGates"
_VERSION: Final = "kubernetesVersion"
_SMT: Final = "agent.isolation.smt"
_ONE_NODE: Final = "agent.preferOneNode"
_PLACEMENT: Final = "agent.placement"
_ISOLATED: Final = "agent.isolatedCPUs"
_MEMORY: Final = "agent.isolation.memory"
#: How the keys of switches begin.
_SWITCHES: Final = (
    _ONE_NODE,
    *(f"{section}." for section in (_OPTIONS, _TOPOLOGY_OPTIONS, _GATES)),
)


class NodeFacts(Saved, frozen=True):
    """One NUMA node: online CPUs, MemTotal in bytes or None, {page size in bytes: pages}."""

    id: Size
    cpus: Mask
    memory_bytes: Size | None
    hugepages: Mapping[Size, Size] = MappingProxyType({})


class HostFacts(Saved, frozen=True):
    """The facts of a host that decide whether an allocation is still valid there."""

    online: Mask = EMPTY
    offline: Mask = EMPTY
    nodes: tuple[NodeFacts, ...] = ()
    #: CPUs that are online and that the cgroup of all pods cannot have.
    withheld: Mask = EMPTY


class SharedPod(Saved, frozen=True):
    """A pod that was rejected and runs in the shared pool until it ends.

    `name` and `namespace` are "" where only the uid is known. `source` asked for the pod, `why` is
    its rejection, reason first.
    """

    uid: Name
    name: str
    namespace: str
    source: Source
    why: str


class SavedBesideLedger(Saved, frozen=True, kw_only=True):
    """What a checkpoint has beside the ledger, as it is in the file."""

    bindings: Bindings = NO_BINDINGS
    #: Uids of pods that are not in the ledger but may still have cgroups, such as removed pods
    #: whose processes still run: these cgroups are not recovered as allocations.
    orphaned: frozenset[Name] = frozenset()
    #: What an operator took out of use.
    cordons: Cordons = NO_CORDONS
    #: Rejected pods that run in the shared pool, by uid; none of them is in the ledger.
    shared: Mapping[Name, SharedPod] = MappingProxyType({})
    #: The kernel's random boot id.
    boot_id: str = ""
    host: HostFacts = HostFacts()
    #: The policy under which the last decision was made, as {the configuration's key: its value}.
    policy: Mapping[str, str] = MappingProxyType({})
    #: The release that wrote the file.
    agent_version: str = ""


class Checkpoint(SavedBesideLedger, frozen=True):
    """Everything that outlives the process."""

    ledger: Ledger
    #: The fields that this release does not know, as they were in the file, for the next one.
    unknown: Mapping[str, Raw] = MappingProxyType({})

    def without_pod(self, ledger: Ledger, uid: str) -> Checkpoint:
        """Return the state after a pod was removed, with the remaining `ledger`.

        The pod's bindings stay until the processes in the bound cgroups have ended, because these
        have to be confined until then.
        """
        return replace(self, ledger=ledger, orphaned=self.orphaned | {uid})

    def with_pod(self, ledger: Ledger, uid: str) -> Checkpoint:
        """Return the state after the pod of `uid` was admitted, with the `ledger` that has it."""
        names = {container.name for container in ledger.allocations[uid].containers}
        return replace(
            self,
            ledger=ledger,
            bindings=self.bindings.of_containers(uid, names),
            orphaned=self.orphaned - {uid},
            shared=self._shared_without(uid),
        )

    def with_shared(self, pod: SharedPod) -> Checkpoint:
        """Return the state with one more pod that runs in the shared pool."""
        return replace(self, shared=MappingProxyType({**self.shared, pod.uid: pod}))

    def without_shared(self, uid: str) -> Checkpoint:
        """Return the state after a pod that ran in the shared pool ended."""
        return replace(self, shared=self._shared_without(uid))

    def _shared_without(self, uid: str) -> Mapping[str, SharedPod]:
        if uid not in self.shared:
            return self.shared
        return MappingProxyType({key: pod for key, pod in self.shared.items() if key != uid})


def host_facts(host: Host) -> HostFacts:
    """Return the facts of a host that a checkpoint keeps."""
    nodes = tuple(_node_facts(node) for node in host.nodes)
    return HostFacts(host.online, host.offline, nodes, host.withheld_cpus)


def host_changes(before: HostFacts, after: HostFacts) -> tuple[str, ...]:
    """Name, one sentence each, what differs between two hosts; empty when nothing does.

    A node that was renumbered shows as changes of the nodes concerned.
    """
    return (
        *_moved("CPUs", "online", before.online, after.online),
        *_moved("CPUs", "offline", before.offline, after.offline),
        *_moved("CPUs", "withheld from pods", before.withheld, after.withheld),
        *_node_changes(
            {node.id: node for node in before.nodes}, {node.id: node for node in after.nodes}
        ),
    )


def policy_summary(policy: Policy) -> Mapping[str, str]:
    """Return the effective policy as {the configuration's key: its value}, sorted by key.

    Options and gates are listed whether on (`true`) or off (`false`), reservations of memory where
    there are any.
    """
    summary = {
        _VERSION: str(policy.version),
        "cpuManagerPolicy": str(policy.cpu.policy),
        "memoryManagerPolicy": str(policy.memory.policy),
        "topologyManagerPolicy": str(policy.topology.policy),
        "topologyManagerScope": str(policy.topology.scope),
        "reservedSystemCPUs": str(policy.cpu.reserved),
        _SMT: str(policy.cpu.idle_siblings),
        _MEMORY: str(policy.memory.usual_classes),
        _PLACEMENT: str(policy.topology.placement),
        **({} if not policy.cpu.unshared else {_ISOLATED: str(policy.cpu.isolated_for)}),
        **{f"agent.pools.{pool.name}": str(pool.cpus) for pool in policy.pools},
        **dict(_switches(policy)),
        **dict(_reserved_memory(policy)),
    }
    return MappingProxyType(dict(sorted(summary.items())))


def policy_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Name, one sentence each, what differs between two summaries of a policy.

    A switch that a summary does not list is off, smt and memory are never, placement is packed, a
    version is the oldest: the release that made the summary had none of them. An empty summary says
    nothing of the policy.
    """
    if not before:
        return ()
    return tuple(
        f"{key} is {new}, it was {old}"
        for key in sorted(before.keys() | after.keys())
        if (old := before.get(key, _unlisted(key))) != (new := after.get(key, _unlisted(key)))
    )


def _unlisted(key: str) -> str:
    if key == _VERSION:
        return str(OLDEST)
    if key in (_SMT, _MEMORY):
        return str(IsolationMode.NEVER)
    if key == _PLACEMENT:
        return str(Placement.PACKED)
    return "false" if key.startswith(_SWITCHES) else "unset"


def _node_facts(node: Node) -> NodeFacts:
    pages = {page.size_bytes: page.count for page in node.hugepages}
    return NodeFacts(node.id, node.cpus, node.memory_bytes, MappingProxyType(pages))


def _moved(what: str, state: str, before: Mask, after: Mask) -> Iterator[str]:
    if gone := before - after:
        yield f"{what} {gone} are no longer {state}"
    if new := after - before:
        yield f"{what} {new} are {state} now"


def _node_changes(before: Mapping[int, NodeFacts], after: Mapping[int, NodeFacts]) -> Iterator[str]:
    for node in sorted(before.keys() | after.keys()):
        match before.get(node), after.get(node):
            case None, _:
                yield f"node {node} is new"
            case _, None:
                yield f"node {node} is gone"
            case NodeFacts() as old, NodeFacts() as new:
                yield from _one_node_changes(old, new)


def _one_node_changes(old: NodeFacts, new: NodeFacts) -> Iterator[str]:
    if old.cpus != new.cpus:
        yield f"node {old.id} has CPUs {new.cpus or 'none'}, it had {old.cpus or 'none'}"
    if old.memory_bytes != new.memory_bytes:
        had_memory, has_memory = _amount(old.memory_bytes), _amount(new.memory_bytes)
        yield f"node {old.id} has {has_memory} of memory, it had {had_memory}"
    for size in sorted(old.hugepages.keys() | new.hugepages.keys()):
        had, has = old.hugepages.get(size, 0), new.hugepages.get(size, 0)
        if had != has:
            yield f"node {old.id} has {has} pages of {size} bytes, it had {had}"


def _amount(size: int | None) -> str:
    return "an unknown amount" if size is None else f"{size} bytes"


def _switches(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield every policy option and feature gate, and whether it is on."""
    options = asdict(policy.cpu.options)
    for section, switches in (
        (_OPTIONS, {field.replace("_", "-"): on for field, on in options.items()}),
        (_TOPOLOGY_OPTIONS, {PREFER_CLOSEST: policy.topology.prefer_closest_numa_nodes}),
        (_GATES, {name: getattr(policy.gates, gate.field) for name, gate in GATES.items()}),
    ):
        for name, on in switches.items():
            yield f"{section}.{name}", "true" if on else "false"
    yield _ONE_NODE, "true" if policy.topology.prefer_one_node else "false"


def _reserved_memory(policy: Policy) -> Iterator[tuple[str, str]]:
    for node, types in policy.memory.reserved.items():
        for type_name, size in types.items():
            yield f"reservedMemory.{node}.{type_name}", str(size)


class CheckpointError(Exception):
    """Base of all errors of this package."""


class UnusableCheckpointError(CheckpointError):
    """The content of a checkpoint cannot be used.

    `path` is the file, `field` the place in it as a JSON path (`$` is the whole document).
    `label` becomes part of the name under which the file is kept aside.
    """

    label: ClassVar[str] = "damaged"

    def __init__(self, path: Path, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem


class DamagedCheckpointError(UnusableCheckpointError):
    """Truncated, altered, or not made as its own version says."""


class UnknownFormatCheckpointError(UnusableCheckpointError):
    """A document of another program."""

    label = "unknown"


class NewerCheckpointError(UnusableCheckpointError):
    """Written by a later release, in a format this one does not know."""

    label = "newer"


class OlderCheckpointError(UnusableCheckpointError):
    """Written in a format that this release no longer reads."""

    label = "older"


class UnreadableCheckpointError(UnusableCheckpointError):
    """The file cannot be read, or it is larger than any checkpoint."""

    label = "unreadable"


class NoFileCheckpointError(UnusableCheckpointError):
    """A directory, a link or another special file is at the checkpoint's path."""

    label = "nofile"


class UntrustedCheckpointError(UnusableCheckpointError):
    """Another user may have written it."""

    label = "untrusted"


class CheckpointIOError(CheckpointError):
    """An operation on the checkpoint's files failed.

    `replaced` says whether the new checkpoint may already be the one a restart would find:
    False means that the previous one is intact and still in place, unless it is `uncertain` which
    of them is there.
    """

    def __init__(
        self,
        operation: str,
        path: Path,
        error: OSError,
        *,
        replaced: bool = False,
        uncertain: bool = False,
    ) -> None:
        found = _REPLACED if replaced else _UNCERTAIN if uncertain else _KEPT
        super().__init__(f"{path}: {operation} failed: {_reason(error)}; {found}; {_remedy(error)}")
        self.errno = error.errno
        self.replaced = replaced
        self.uncertain = uncertain


class ReplacedDirectoryError(CheckpointIOError):
    """The state directory is no longer the one that this process locked.

    The directory found there now may be another agent's, so nothing is written to it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__("saving", directory, OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
        message = (
            f"state directory {directory}: it, or the lock file in it, was removed or replaced "
            "while this agent ran, so nothing is saved; put the original directory back, or "
            "restart the agent, which then takes over what it finds there"
        )
        self.args = (message,)


class StateDirectoryError(CheckpointError):
    """The state directory cannot be used as it is."""

    def __init__(self, directory: Path, problem: str, remedy: str) -> None:
        super().__init__(f"state directory {directory}: {problem}; {remedy}")
        self.directory = directory


class StateDirectoryLockedError(StateDirectoryError):
    """Another process uses the state directory; `holder` is its process id where known."""

    def __init__(self, directory: Path, holder: int | None) -> None:
        who = f"process {holder}" if holder is not None else "another process"
        super().__init__(
            directory,
            f"in use by {who}",
            "stop that one, or give this one a state directory of its own",
        )
        self.holder = holder


_KEPT = "the previous checkpoint is untouched"
_REPLACED = "the new state may be lost at a power failure"
_UNCERTAIN = "it cannot be seen whether the previous checkpoint or the new one is there"
_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space within the quota",
    errno.EISDIR: "move away the directory of that name",
    errno.EROFS: "remount the file system read-write",
    errno.EIO: "check the disk and the kernel log",
    errno.EACCES: "let the service's user write there",
    errno.EPERM: "let the service's user write there",
}


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "check the file system")


FORMAT: Final = "numawarden-checkpoint"
VERSION: Final = 2

_RECOVERY: Final = (
    "the file is kept aside; put back an intact copy, or let running pods be admitted again"
)
#: Where an allocation keeps its JSON, beside its fields: it does not change, so neither does that.
_TEXT: Final = "saved text"


class _Header(msgspec.Struct):
    format: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET


class _Document(msgspec.Struct):
    format: str
    version: int
    checksum: str
    state: Raw


class _State(SavedBesideLedger, frozen=True):
    """The value of `state`: of the ledger, what does not follow from the rest of it."""

    pods: tuple[PodAllocation, ...]
    memory: Mapping[Size, NodeMemory] = MappingProxyType({})


_BESIDE_LEDGER: Final = msgspec.structs.fields(SavedBesideLedger)
_KNOWN: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_State))


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint.

    An allocation is encoded once: allocations are immutable and survive from one ledger to the
    next, so that an admission on a full host encodes one pod, not all of them.
    """
    body = _ENCODER.encode(
        {
            **checkpoint.unknown,
            **{field.encode_name: getattr(checkpoint, field.name) for field in _BESIDE_LEDGER},
            # A set has no order of its own: equal states have equal bytes.
            "orphaned": sorted(checkpoint.orphaned),
            "memory": memory_charge(checkpoint.ledger),
            "pods": [_text_of(pod) for pod in checkpoint.ledger.allocations.values()],
        }
    )
    return b'{"format":"%s","version":%d,"checksum":"%s","state":%s}\n' % (
        FORMAT.encode(),
        VERSION,
        _checksum(body).encode(),
        body,
    )


def _text_of(pod: PodAllocation) -> Raw:
    if _TEXT not in pod.__dict__:
        pod.__dict__[_TEXT] = Raw(_ENCODER.encode(pod))
    return cast("Raw", pod.__dict__[_TEXT])


def decode(data: bytes, path: Path) -> Checkpoint:
    """Return the checkpoint with these bytes; `path` is only named in errors.

    Raises a subclass of `UnusableCheckpointError`: Damaged, UnknownFormat, Newer or Older.
    """
    try:
        _check_header(msgspec.json.decode(data, type=_Header), path)
        document = msgspec.json.decode(data, type=_Document)
        _check_sum(document, path)
        return _read(document.state)
    except msgspec.ValidationError as error:
        raise _damaged(path, *_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "$", f"not a complete JSON document ({error})") from error
    except ValueError as error:
        raise _damaged(path, *map(str, error.args)) from error


def _read(body: Raw) -> Checkpoint:
    """Return the checkpoint of a state; raises `ValueError(field, problem)` on contradictions."""
    bytes(body).decode()  # unknown fields are not looked into, but are written and sent again
    state = _DECODER.decode(body)
    _demand_unique("$.state.pods", "pod", (pod.uid for pod in state.pods))
    for index, pod in enumerate(state.pods):
        names = (container.name for container in pod.containers)
        _demand_unique(f"$.state.pods[{index}].containers", "container", names)
    read = msgspec.json.decode(body, type=dict[str, Raw])
    for pod, text in zip(
        state.pods, msgspec.json.decode(read["pods"], type=list[Raw]), strict=True
    ):
        pod.__dict__[_TEXT] = text.copy()
    saved = {MEMORY: state.memory}
    parts = {each.name: each.loaded(saved.get(each.name), state.pods) for each in MANAGERS}
    return Checkpoint(
        Ledger.of(state.pods, parts),
        MappingProxyType({name: read[name].copy() for name in read.keys() - _KNOWN}),
        **{field.name: getattr(state, field.name) for field in _BESIDE_LEDGER},
    )


def _check_header(header: _Header, path: Path) -> None:
    if header.format != FORMAT:
        raise UnknownFormatCheckpointError(
            path,
            "$.format",
            f"expected {FORMAT!r}, found {_shown(header.format)}",
            "the file is kept aside; if it is the kubelet's, use `numawarden state import`",
        )
    if header.version is msgspec.UNSET:
        raise _damaged(path, "$.version", "missing")
    if header.version == VERSION:
        return
    problem = f"format {header.version}, this release reads and writes {VERSION}"
    if header.version > VERSION:
        remedy = "the file is kept aside; go back to the release that wrote it and put it back"
        raise NewerCheckpointError(path, "$.version", problem, remedy)
    remedy = (
        "the file is kept aside; let running pods be admitted again, or go back to the release "
        "that wrote it and put it back"
    )
    raise OlderCheckpointError(path, "$.version", problem, remedy)


def _check_sum(document: _Document, path: Path) -> None:
    computed = _checksum(bytes(document.state))
    if document.checksum != computed:
        raise _damaged(path, "$.checksum", f"says {document.checksum}, the content has {computed}")


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _demand_unique(field: str, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(field, f"{what} {name!r} appears twice")
        seen.add(name)


def _damaged(path: Path, field: str, problem: str) -> UnusableCheckpointError:
    return DamagedCheckpointError(path, field, problem, _RECOVERY)


def _place(message: str) -> tuple[str, str]:
    """Split msgspec's `problem - at `$.place`` into place and problem."""
    problem, found, place = message.rpartition(" - at `")
    return (place.rstrip("`"), problem) if found else ("$", message)


def _shown(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else repr(value)


def _dec_hook(kind: type, value: object) -> Mask:
    if kind is not Mask:
        raise NotImplementedError(f"no value of type {kind.__name__} from JSON")
    if not isinstance(value, str):
        raise TypeError(f"expected a list of ids such as '0-3,8', got {value!r}")
    return Mask.parse(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=plain)
_DECODER: Final = msgspec.json.Decoder(_State, dec_hook=_dec_hook)
