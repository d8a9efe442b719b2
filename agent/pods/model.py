"""The pod as the managers use it: names, kinds, requests and limits of v1.Pod, and their digest.

The digest recognizes a request that is repeated: it covers what a decision depends on. Of its
annotations a pod has how long it stays admitted (`Lifetime`), what it asks of the isolation of its
exclusive CPUs beside what the configuration gives all, and what it requires of its allocation
beyond what the policies demand (`Quality`). `PodIdentity` is whom a manifest speaks of, even if it
is not valid.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring_ascii as quoted
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct

from agent.values import KeyChoice, Saved
from agent.yaml import DocumentError, MappingNode, Node, ScalarNode
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.pods.quantity import Quantity


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
LONGEST_NAME: Final = 253


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
    if not isinstance(text, str) or len(text) > LONGEST_NAME or not text.isprintable():
        return ""
    return text


@dataclass
class ManifestError(DocumentError):
    """A pod manifest was rejected; `problems` are all its mistakes with path and line.

    `identity` is the identity of the pod as far as the manifest is readable.
    """

    identity: PodIdentity = NO_IDENTITY

    what = "pod manifest"


#: The annotation: `processes` for a pod that ends with its processes.
END: Final = "agent.numawarden/end"
#: The annotation: the systemd unit with which a pod ends.
UNIT: Final = "agent.numawarden/unit"
#: Names of units that have processes (systemd.unit(5)); at most 255 characters.
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]{0,245}\.(service|scope)")


class End(StrEnum):
    """What ends a pod."""

    #: A request over the API, or the source of the pod.
    REMOVAL = "removal"
    #: The end of its last process; until the first one starts, too long a wait for it.
    PROCESSES = "processes"
    #: The end of a systemd unit, but not its restarts.
    UNIT = "unit"


class Lifetime(Saved, frozen=True):
    """What ends a pod; any pod can be removed in addition.

    `unit` is the name of the systemd unit of `End.UNIT`, else "". `started`: processes of the pod
    were seen since its admission.
    """

    end: End = End.REMOVAL
    unit: str = ""
    started: bool = False


UNTIL_REMOVED: Final = Lifetime()


def lifetime_of(annotations: Mapping[str, str]) -> Lifetime:
    """Return the lifetime that the annotations of a valid pod ask for."""
    if unit := annotations.get(UNIT, ""):
        return Lifetime(End.UNIT, unit)
    return Lifetime(End(annotations.get(END, End.REMOVAL)))


def lifetime_faults(annotations: Mapping[str, str], containers: int) -> dict[str, str]:
    """Return what is wrong with the annotations of a pod of so many containers, by annotation."""
    found: dict[str, str] = {}
    end, unit = annotations.get(END), annotations.get(UNIT)
    ends = (End.REMOVAL, End.PROCESSES)
    if end is not None and end not in ends:
        found[END] = f"{end[:40]!r} is not one of {', '.join(ends)}"
    if unit is None:
        return found
    if not _UNIT_NAME.fullmatch(unit):
        found[UNIT] = f"{unit[:40]!r} is not the name of a .service or .scope of systemd"
    elif end is not None:
        found[UNIT] = f"a pod ends with a unit or as {END} says; leave one of the two out"
    elif containers != 1:
        found[UNIT] = f"a unit is one container, the pod has {containers}"
    return found


_ISOLATION: Final = "isolation.numawarden.dev/"
#: Interrupts keep off the pod's CPUs; with `own-devices` those of its devices go there.
INTERRUPTS: Final = "interrupts"
#: The name of a power class of the configuration.
POWER: Final = "power"
OWN_DEVICES: Final = "own-devices"
#: The sibling threads of the cores of exclusive CPUs stay idle.
SMT: Final = "smt"
IDLE_SIBLINGS: Final = "idle-siblings"
#: The kernel takes the pod's CPUs from all other cgroups (`cpuset.cpus.partition`).
PARTITION: Final = "partition"
NO_PARTITION: Final = "off"
#: The name of a class of caches and memory bandwidth of the configuration.
RESCTRL: Final = "resctrl"
#: The classes of memory that the pod may use, or those with `!` that it may not: `dram,hbm`.
MEMORY_CLASSES: Final = "memory"
ANY_MEMORY: Final = "any"
_NOT: Final = "!"
#: The items that a pod may ask for, each with what it may say; nothing is any name, of classes of
#: memory any list of names.
ISOLATION_ITEMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        INTERRUPTS: ("off", OWN_DEVICES),
        MEMORY_CLASSES: (),
        PARTITION: (NO_PARTITION, "root", "isolated"),
        POWER: (),
        RESCTRL: (),
        SMT: (IDLE_SIBLINGS,),
    }
)


def isolation_annotation(item: str) -> str:
    """Return the annotation with which a pod asks for an item of isolation."""
    return f"{_ISOLATION}{item}"


_ISOLATION_NAMES: Final = tuple([(item, isolation_annotation(item)) for item in ISOLATION_ITEMS])


def isolation_of(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the annotations of a valid pod ask for, by item."""
    asked = {item: annotations[name] for item, name in _ISOLATION_NAMES if name in annotations}
    return MappingProxyType(asked)


def isolation_faults(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the annotations that ask for what does not exist, each with what is wrong."""
    for item, text in isolation_of(annotations).items():
        choices = ISOLATION_ITEMS[item]
        if item == MEMORY_CLASSES:
            if wrong := memory_classes_fault(text):
                yield isolation_annotation(item), wrong
        elif choices and text not in choices:
            yield isolation_annotation(item), f"{text[:40]!r} is not one of {', '.join(choices)}"
        elif not choices and (fault := label_fault(text)) is not None:
            yield isolation_annotation(item), f"{text[:40]!r} is not a name: {fault}"


def allows_memory(text: str, name: str) -> bool:
    """Return whether memory of a class is allowed by a list of classes; `name` "" is unknown."""
    classes = _names(text)
    named = [each for each in classes if not each.startswith(_NOT)]
    return f"{_NOT}{name}" not in classes and (not named or name in named or text == ANY_MEMORY)


#: The list is kept with the allocation, in the checkpoint.
_LONGEST_CLASSES: Final = 1024


def memory_classes_fault(text: str) -> str:
    """Return what is wrong with a list of classes of memory, "" for nothing."""
    if len(text) > _LONGEST_CLASSES:
        return f"it has {len(text)} characters, a list of classes at most {_LONGEST_CLASSES}"
    for name in _names(text):
        if fault := label_fault(name.removeprefix(_NOT)):
            return f"{name[:40]!r} is not the name of a class of memory: {fault}"
    return "" if _names(text) else "it names no class of memory; leave it out or name some: dram"


CPU: Final = "cpu"
MEMORY: Final = "memory"
#: Processes; of a node only (pkg/kubelet/stats/pidlimit).
PID: Final = "pid"
HUGEPAGES_PREFIX: Final = "hugepages-"

_NOTHING: Final[Mapping[str, Quantity]] = MappingProxyType({})


class QosClass(StrEnum):
    """The quality-of-service class of a pod (v1.PodQOSClass)."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(StrEnum):
    """Standard init container, sidecar (restartable init container), or app container."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Resources(Struct, frozen=True):
    """Requests and limits by resource name (v1.ResourceRequirements)."""

    requests: Mapping[str, Quantity] = _NOTHING
    limits: Mapping[str, Quantity] = _NOTHING


class Container(Struct, frozen=True):
    """One container of a pod."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: Resources = Resources()


class GivenDevice(Struct, frozen=True):
    """A device that the kubelet beside the agent gave to a container of one of its plugins.

    An empty `nodes` means that no NUMA locality is known.
    """

    resource: str
    id: str
    nodes: Mask = EMPTY


#: The bytes that NUMA nodes could give, by node and memory type; what is not known is left out.
Availability: TypeAlias = "Mapping[int, Mapping[str, int]]"
#: The devices of each container by its name; a container without devices may be missing.
GivenDevices: TypeAlias = "Mapping[str, tuple[GivenDevice, ...]]"
NO_GIVEN_DEVICES: Final[GivenDevices] = MappingProxyType({})


#: The values of `spec.os.name`; this host is the first.
LINUX: Final = "linux"
SYSTEMS: Final = (LINUX, "windows")


class Pod(Struct, frozen=True):
    """One pod, defaulted and validated.

    `init_containers` are standard init containers and sidecars in manifest order.
    `resources` is `spec.resources` (pod-level, KEP-2837), None when the manifest has none.
    `status_qos` is `status.qosClass` of the manifest, which wins over the computed class.
    `overhead` is `spec.overhead`: what the runtime needs beside the containers (KEP-688).
    `os` is `spec.os.name`, "" where it is not stated.
    No part of the manifest are `given_devices`, what the kubelet gave to the containers, and
    `available`, what the nodes could give, both read before the pod is decided on; the latter only
    where a decision depends on it (`Placement.SPREAD`).
    """

    uid: str
    name: str
    namespace: str
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    resources: Resources | None = None
    status_qos: QosClass | None = None
    annotations: Mapping[str, str] = MappingProxyType({})
    overhead: Mapping[str, Quantity] = _NOTHING
    os: str = ""
    given_devices: GivenDevices = NO_GIVEN_DEVICES
    available: Availability = MappingProxyType({})

    def all_containers(self) -> tuple[Container, ...]:
        """Return init containers, then app containers: the order in which they are admitted."""
        return self.init_containers + self.containers


#: Changes when the digest covers something else, so that digests never compare across.
_FORMAT: Final = 1


def spec_digest(pod: Pod) -> str:
    """Return 64 hex digits that are equal for two pods exactly when they request the same.

    Covered are the containers in order with name, kind, requests and limits, the pod-level
    resources, a stated QoS class and the overhead. Not covered are uid, name, namespace,
    annotations, the operating system, what was read beside and how an amount was written.
    """
    return digest_of(spec_text(pod))


def digest_of(text: str) -> str:
    """Return the digest of a `spec_text`."""
    return hashlib.sha256(text.encode()).hexdigest()


def spec_text(pod: Pod) -> str:
    """Return what is digested, as JSON: `[format, [container, ...], amounts, class]`.

    The amounts of an overhead are a fifth member where a pod has one. A container is
    `[name, kind, amounts]`, amounts are `[requests, limits]`, each of them a list of
    `[resource, amount in units of 10^-9]` by name. It is put together here because a JSON encoder
    takes twice as long, a thirtieth of a decision.
    """
    containers = ",".join([_container_text(container) for container in pod.all_containers()])
    amounts = "null" if pod.resources is None else _amounts_text(pod.resources)
    status = "null" if pod.status_qos is None else quoted(pod.status_qos)
    overhead = f",[{_listed(pod.overhead)}]" if pod.overhead else ""
    return f"[{_FORMAT},[{containers}],{amounts},{status}{overhead}]"


def _container_text(container: Container) -> str:
    return (
        f"[{quoted(container.name)},{quoted(container.kind)},{_amounts_text(container.resources)}]"
    )


def _amounts_text(resources: Resources) -> str:
    return f"[[{_listed(resources.requests)}],[{_listed(resources.limits)}]]"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ",".join([f"[{quoted(name)},{amount.nano}]" for name, amount in sorted(amounts.items())])


#: The annotation: names of qualities, separated by commas.
REQUIRE: Final = "agent.numawarden/require"
#: The annotation: NUMA nodes in the kernel's list format, one of which the pod has to be on.
NEAR_NODES: Final = "agent.numawarden/near-nodes"
#: The annotation: names of containers, separated by commas, that get exclusive CPUs in a pod of any
#: QoS class.
EXCLUSIVE: Final = "cpu.numawarden.dev/exclusive"
#: The annotation: what whole numbers of CPUs are rounded up to.
ROUND_UP: Final = "cpu.numawarden.dev/round-up"
CORES: Final = "cores"
#: The annotation: the pod's `Placement`.
PLACEMENT: Final = "agent.numawarden/placement"


#: The annotation: the name of the pool of shared CPUs that the pod is in (`agent.pools`).
POOL: Final = "cpu.numawarden.dev/pool"
#: The annotation: which of the nodes that they may use the pod's processes take memory from.
NUMA_POLICY: Final = "memory.numawarden.dev/policy"
INTERLEAVE: Final = "interleave"
#: The annotation: what of a running pod may be moved (`Movable`).
MOVE: Final = "move.numawarden.dev/allow"


class Movable(StrEnum):
    """What of a running pod may be moved."""

    CPUS = "cpus"
    #: Its pinned memory, too.
    MEMORY = "memory"


class Placement(KeyChoice):
    """Which of the sets of NUMA nodes that the policy holds equal is taken."""

    PACKED = "packed", "the lowest nodes, as the kubelet"
    SPREAD = (
        "spread",
        (
            "the nodes that other programs leave the memory that is asked for, then those with the "
            "most free CPUs, then memory, then devices; on hosts of up to 8 nodes"
        ),
    )


class Quality(StrEnum):
    """What an allocation can have; each is judged container by container."""

    #: The container has CPUs of its own.
    EXCLUSIVE = "exclusive"
    #: Its CPUs and its memory are on one NUMA node, or on the fewest nodes that have enough.
    ALIGNED = "aligned"
    #: Its exclusive CPUs are whole physical cores: no other container runs on a sibling.
    WHOLE_CORES = "whole-cores"
    #: Each of its devices is on a node of its CPUs, or of its memory where no CPUs are its own.
    NEAR_DEVICE = "near-device"


#: The annotations that the agent reads.
ANNOTATIONS: Final = frozenset(
    {
        END,
        EXCLUSIVE,
        MOVE,
        NEAR_NODES,
        NUMA_POLICY,
        PLACEMENT,
        POOL,
        REQUIRE,
        ROUND_UP,
        UNIT,
        *map(isolation_annotation, ISOLATION_ITEMS),
    }
)


def own_annotations(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations that the agent reads, which are kept with the allocation."""
    if not annotations:
        return _NO_ANNOTATIONS
    return MappingProxyType({key: annotations[key] for key in annotations if key in ANNOTATIONS})


_NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})


def required(annotations: Mapping[str, str]) -> frozenset[Quality]:
    """Return what the annotations of a valid pod require."""
    return frozenset(Quality(name) for name in _names(annotations.get(REQUIRE, "")))


def named_containers(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the containers that the annotations give exclusive CPUs in a pod of any QoS class."""
    return frozenset(_names(annotations.get(EXCLUSIVE, "")))


class Asked(Struct, frozen=True):
    """What the annotations of a valid pod ask of a decision."""

    #: By item of isolation.
    isolation: Mapping[str, str] = MappingProxyType({})
    #: The qualities without which the pod is to be rejected.
    required: frozenset[Quality] = frozenset()
    #: The NUMA nodes of which the pod has to be on one, empty for any.
    near_nodes: Mask = EMPTY
    #: None: that of the configuration (`agent.placement`).
    placement: Placement | None = None
    #: The containers that get exclusive CPUs in a pod of any QoS class.
    named: frozenset[str] = frozenset()
    #: Whether whole numbers of CPUs are rounded up to whole cores.
    round_up: bool = False
    #: Whether its memory is on as many nodes as its CPUs need, and taken from all of them in turn.
    interleave: bool = False


_NOTHING_ASKED: Final = Asked()


def asked_by(annotations: Mapping[str, str]) -> Asked:
    """Return what the annotations of a valid pod ask of a decision."""
    if not annotations:
        return _NOTHING_ASKED
    near_nodes = Mask.parse(annotations.get(NEAR_NODES, ""))
    stated = annotations.get(PLACEMENT)
    return Asked(
        isolation_of(annotations),
        required(annotations),
        near_nodes,
        None if stated is None else Placement(stated),
        named_containers(annotations),
        ROUND_UP in annotations,
        NUMA_POLICY in annotations,
    )


def near_nodes_fault(annotations: Mapping[str, str]) -> str:
    """Return what is wrong with the list of nodes in the annotations of a pod, "" for nothing."""
    text = annotations.get(NEAR_NODES)
    if text is None:
        return ""
    try:
        found = Mask.parse(text)
    except ValueError as error:
        return str(error)
    return "" if found else "it lists no node; leave it out or list some, such as 0 or 0-1"


def unknown_qualities(text: str) -> tuple[str, ...]:
    """Return the names in the value of the annotation that are no quality."""
    return tuple(name for name in _names(text) if name not in set(Quality))


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]
