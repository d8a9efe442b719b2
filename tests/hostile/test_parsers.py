"""No parser of the product takes longer than its text is long, whatever is in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.api.documents import document
from agent.api.documents.admissions import BindRequest
from agent.config.durations import seconds_of
from agent.config.load import load_config, override
from agent.config.model import ConfigError
from agent.managers.allocation import MemoryBlock
from agent.pods.manifest import load_pod
from agent.pods.model import (
    ManifestError,
    extended_resource_fault,
    label_fault,
    prefixed_resource_fault,
    subdomain_fault,
    uid_fault,
)
from agent.pods.quantity import Quantity, QuantityError
from agent.state.checkpoint import UnusableCheckpointError, decode, encode
from agent.text import printable
from agent.tools.kubelet_state.cpu import CPU_FORMAT, CpuState
from agent.tools.kubelet_state.files import KubeletState
from agent.tools.kubelet_state.format import KubeletStateError, UnfitStateError
from agent.tools.kubelet_state.importing import take_over
from agent.tools.kubelet_state.memory import MEMORY_FORMAT, MemoryNode, MemoryState
from agent.yaml import UnreadableError, read_document
from cgroupfs.errors import CgroupError
from cgroupfs.names import from_proc, parse_container
from cgroupfs.settings import CpuMax
from sysfs.mask import Mask
from sysfs.uevents import hotplug_of
from systemd.units import SystemdError, slice_path
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.state.states import example
from tests.hostile.growth import LONGEST, demand_quick

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.state.checkpoint import Checkpoint

pytestmark = pytest.mark.nightly

_RULES: Final = make_rules(SMT)
_PATH: Final = Path("file")
_MOST: Final = 2 * LONGEST
#: Values are many and their parsers simple: what is quadratic shows here.
_VALUE: Final = 1 << 16
_REJECTIONS: Final = (
    CgroupError, ConfigError, KubeletStateError, ManifestError, QuantityError,
    SystemdError, UnreadableError, UnusableCheckpointError, ValueError,
)  # fmt: skip

_POD: Final = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"


def repeated(lead: str, body: str, end: str = "") -> Callable[[int], bytes]:
    """Return what repeats a text to a length."""
    return lambda length: (lead + body * (length // len(body)) + end).encode()


def numbered(lead: str, body: str, end: str = "", between: str = "") -> Callable[[int], bytes]:
    """Return what repeats a text to a length, each time with another number in the place of %."""

    def make(length: int) -> bytes:
        count = length // (len(body) + 5)
        return (lead + between.join(body.replace("%", str(n)) for n in range(count)) + end).encode()

    return make


#: What is hard for a reader of documents, before it is asked what it says.
TEXTS: Final[dict[str, Callable[[int], bytes]]] = {
    "digits": repeated("a: ", "0", "x"),
    "base 60": repeated("a: ", "1:", "x"),
    "hexadecimal": repeated("a: 0x", "f", "g"),
    "underscores": repeated("a: 1", "_", "x"),
    "date": repeated("a: 2026-1-1 ", " ", "\n"),
    "number as a key": repeated("", "0", "x: 1"),
    "quoted text": repeated("a: '", "''", "'"),
    "escapes": repeated('a: "', "\\x41", '"'),
    "open quote": repeated('a: "', "a\n "),
    "block text": repeated("a: |\n", "  a\n"),
    "folded text": repeated("a: >\n", "  a\n\n"),
    "plain text of many lines": repeated("a: b\n", "  b\n"),
    "comments": repeated("a: 1\n", "# a\n"),
    "spaces": repeated("a: 1\n", " "),
    "line feeds": repeated("a: 1", "\n"),
    "tabs": repeated("a:", "\t"),
    "open lists": repeated("", "["),
    "open mappings": repeated("", "{a: "),
    "indents": repeated("", "- "),
    "keys without values": repeated("", "? "),
    "anchors": repeated("", "&a "),
    "documents": repeated("", "---\n"),
    "directives": repeated("", "%YAML 1.1\n"),
    "tag": repeated("!", "a", " b"),
    "alias": repeated("*", "a"),
    "aliases": numbered("", "- &a% [b]\n- *a%\n"),
    "items": repeated("a:\n", "- b\n"),
    "entries": numbered("", "k%: b\n"),
    "the same key": repeated("", "k: b\n"),
    "not UTF-8": lambda length: b"a: " + b"\xff" * length,
    "nulls": lambda length: b"a: " + b"\0" * length,
    "JSON lists": repeated('{"a":', "["),
    "JSON objects": repeated("", '{"a":'),
    "JSON text": repeated('{"a":"', "b", '"}'),
    "JSON escapes": repeated('{"a":"', "\\u00e9", '"}'),
    "JSON half pairs": repeated('{"a":"', "\\ud800", '"}'),
    "JSON number": repeated('{"a":', "1", "}"),
    "JSON values": repeated('{"a":[0', ",0", "]}"),
    "JSON entries": numbered("{", '"k%":0', "}", ","),
    "JSON spaces": repeated('{"a":1', " ", "}"),
    "spaces before JSON": repeated("", " ", "{}"),
}

#: What is a document, and no pod.
MANIFESTS: Final[dict[str, Callable[[int], bytes]]] = {
    "unknown fields": numbered(_POD + "  - name: a\n", "    nam%: b\n"),
    "one long unknown field": repeated(_POD + "  - ", "name", ": b\n"),
    "containers": numbered(_POD, "  - {name: c%}\n"),
    "containers of one name": repeated(_POD, "  - name: c\n"),
    "containers of wrong types": repeated(_POD, "  - {name: [], resources: 1}\n"),
    "one long name": repeated(_POD + "  - name: ", "a.", "-"),
    "one long image": repeated(_POD + "  - name: a\n    image: ", "0"),
    "wrong resources": numbered(
        _POD + "  - name: a\n    resources:\n      requests:\n", "        a-%: 1x\n"
    ),
    "long amounts": repeated(_POD + "  - {name: a, resources: {requests: {cpu: ", "1", "}}}"),
    "long resource": repeated(_POD + "  - {name: a, resources: {requests: {", "a", ": 1}}}"),
    "environment": numbered(_POD + "  - name: a\n    env:\n", "    - {name: e%, value: x}\n"),
    "annotations": numbered(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n", "    k%: 1\n"
    ),
    "long uid": repeated("apiVersion: v1\nkind: Pod\nmetadata:\n  uid: ", "a.", "-"),
    "long kind": repeated("apiVersion: v1\nkind: ", "Pod"),
}

CONFIGS: Final[dict[str, Callable[[int], bytes]]] = {
    "unknown keys": numbered("", "cpuManagerPolicy%: none\n"),
    "a list of CPUs": repeated("reservedSystemCPUs: '0", ",1", "'"),
    "wide lists of CPUs": repeated("reservedSystemCPUs: '0", ",0-65535", "'"),
    "a duration": repeated("cpuManagerReconcilePeriod: ", "1h"),
    "an amount": repeated("systemReserved: {cpu: '", "1", "'}"),
    "reserved memory": repeated("reservedMemory:\n", "- {numaNode: 0, limits: {memory: 1}}\n"),
    "gates": numbered("featureGates:\n", "  Gate%: true\n"),
    "options": numbered("cpuManagerPolicyOptions:\n", "  option-%: 'true'\n"),
    "thresholds": numbered("evictionHard:\n", "  memory.availabl%: 1%\n"),
    "devices": numbered("agent: {devices: {a.b/c: [", "{id: d%, numaNodes: [0]}", "]}}", ", "),
    "a path": repeated("staticPodPath: /", "a/../", "b"),
    "a group": repeated("agent: {socketGroup: ", "a", "!}"),
    "an address": repeated("agent: {metrics: {address: '", "1:", "'}}"),
}

_CPU_FILE: Final = '{"policyName":"static","defaultCpuSet":"0"'
_MEMORY_FILE: Final = '{"policyName":"Static","machineState":{'
_MEMORY_NODE: Final = '"%":{"numberOfAssignments":0,"memoryMap":{},"cells":[%]}'
_CHECKPOINT: Final = encode(example()).decode()


def cpu_file(data: bytes) -> CpuState:
    return CPU_FORMAT.read(data, _PATH)


def checkpoint(data: bytes) -> Checkpoint:
    return decode(data, _PATH)


STATE_FILES: Final[dict[str, tuple[Callable[[bytes], object], Callable[[int], bytes]]]] = {
    "CPU sets": (
        cpu_file,
        numbered(_CPU_FILE + ',"entries":{', '"u%":{"c":"0-1"}', '},"checksum":1}', ","),
    ),
    "CPU sets without a checksum": (
        cpu_file,
        numbered(_CPU_FILE + ',"entries":{', '"u%":{"c":"0-1"}', "}}", ","),
    ),
    "CPU sets of pods": (
        cpu_file,
        numbered(_CPU_FILE + ',"podEntries":{', '"u%":{"cpuSet":"0-1"}', '},"checksum":1}', ","),
    ),
    "one CPU set": (
        cpu_file,
        repeated('{"policyName":"static","defaultCpuSet":"0', ",1", '","checksum":1}'),
    ),
    "memory of nodes": (
        lambda data: MEMORY_FORMAT.read(data, _PATH),
        numbered(_MEMORY_FILE, _MEMORY_NODE, '},"checksum":1}', ","),
    ),
    "checkpoint with a long name": (
        checkpoint,
        repeated(_CHECKPOINT.replace('"checksum"', '"c', 1), "a", '"'),
    ),
    "checkpoint of another format": (checkpoint, repeated('{"format":"', "a", '"}')),
    "checkpoint of a long version": (
        checkpoint,
        repeated('{"format":"numawarden-checkpoint","version":', "1", "}"),
    ),
    "checkpoint of open lists": (checkpoint, repeated("", "[")),
    "binding": (
        lambda data: document.decode(data, BindRequest),
        repeated('{"cgroup":"', "/a", '"}'),
    ),
    "uevent": (hotplug_of, repeated("change@/a\0SUBSYSTEM=cpu\0", "A=1\0")),
}


def taken_over(pods: int) -> KubeletState:
    """Return the state of a kubelet in which so many pods hold the same CPU."""
    sets = {f"u{number}": {"c": Mask.of(1)} for number in range(pods)}
    cpu = CpuState("static", default=SMT.cpus.all - Mask.of(1), containers=sets)
    nodes = {node: MemoryNode(0, Mask.of(0), {}) for node in range(pods)}
    blocks = {uid: {"c": (MemoryBlock("memory", 1, Mask.of(0)),)} for uid in sets}
    return KubeletState(cpu, MemoryState("Static", nodes=nodes, containers=blocks))


def as_text(call: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return what takes the text of some bytes."""
    return lambda data: call(data.decode())


SCALARS: Final[dict[str, tuple[Callable[[bytes], object], tuple[str, ...]]]] = {
    "quantity": (as_text(Quantity.parse), ("1", "0.0", " ", "1e", "-", "Ki")),
    "mask": (as_text(Mask.parse), ("1", "1,", "0-65535,", "0-1-", ",", " ", "-", "1-")),
    "duration": (as_text(seconds_of), ("1h", "1", "1.1s", "h", "0")),
    "label": (as_text(label_fault), ("a", "a-", "-", "a.", "A")),
    "subdomain": (as_text(subdomain_fault), ("a", "a-", "a.", ".", "a-.")),
    "uid": (as_text(uid_fault), ("a", "a-", "a.", "..", "-")),
    "resource": (as_text(extended_resource_fault), ("a/", "a.", "a", "/", "a-", "kubernetes.io/")),
    "native": (as_text(prefixed_resource_fault), ("kubernetes.io/", "a.", "kubernetes.io/a", "/")),
    "cpu.max": (as_text(CpuMax.parse), ("1", "max ", " ", "1 ", "m")),
    "cgroup of a process": (as_text(from_proc), ("0::/a\n", "1:cpu:/\n", "0::/", "\n", "a/")),
    "container": (as_text(parse_container), ("a", "cri-containerd-", ".scope", "-", "crio-")),
    "unit": (as_text(slice_path), ("a-", "a", "-", ".slice", "\\x41")),
    "name of a process": (as_text(printable), ("a", "\x1b", "\u00e9")),
    "setting": (
        as_text(lambda text: override(load_config(b"{}", ""), [text])),
        ("a.", "agent.", "a=", "systemReserved.a=1", "reservedSystemCPUs=1,"),
    ),
}  # fmt: skip


def measure(
    parse: Callable[[bytes], object], make: Callable[[int], bytes], longest: int = LONGEST
) -> None:
    """Parse longer and longer texts; that one is rejected, and what that says, is part of it."""

    def attempt(data: bytes) -> None:
        try:
            parse(data)
        except _REJECTIONS as error:
            str(error)

    demand_quick(attempt, make, longest)


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS)
def test_a_document_takes_no_longer_than_it_is_long(make: Callable[[int], bytes]) -> None:
    measure(partial(read_document, max_bytes=_MOST), make)


@pytest.mark.parametrize("make", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_takes_no_longer_than_it_is_long(make: Callable[[int], bytes]) -> None:
    measure(lambda data: load_pod(data, "manifest", max_bytes=_MOST), make)


@pytest.mark.parametrize("make", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_takes_no_longer_than_it_is_long(make: Callable[[int], bytes]) -> None:
    measure(lambda data: load_config(data, "configuration", max_bytes=_MOST), make)


@pytest.mark.parametrize(("parse", "make"), STATE_FILES.values(), ids=STATE_FILES)
def test_a_file_of_state_takes_no_longer_than_it_is_long(
    parse: Callable[[bytes], object], make: Callable[[int], bytes]
) -> None:
    measure(parse, make)


def test_a_state_takes_no_longer_to_be_judged_than_it_has_pods() -> None:
    def attempt(state: KubeletState) -> None:
        with pytest.raises(UnfitStateError):
            take_over(_RULES, state)

    demand_quick(attempt, taken_over, 1 << 14)


@pytest.mark.parametrize(("parse", "bodies"), SCALARS.values(), ids=SCALARS)
def test_a_single_value_takes_no_longer_than_it_is_long(
    parse: Callable[[bytes], object], bodies: tuple[str, ...]
) -> None:
    for body in bodies:
        for end in ("", "x", "!"):
            measure(parse, repeated("", body, end), _VALUE)
