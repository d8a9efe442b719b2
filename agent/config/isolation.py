"""What is kept off exclusive CPUs beside other pods: the section `agent.isolation`."""

from __future__ import annotations

import re
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.config.keys import Section, key, read, schema, section, switch, written
from agent.config.kinds import CGROUP_NAMES, CPU_LIST, NODE_LIST, mapping_kind, one_of, text_kind
from agent.managers.policy import IsolationMode
from agent.pods.model import label_fault, memory_classes_fault
from agent.yaml import shown
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.kinds import KeyReader, Kind, Schema
    from agent.yaml import Field
    from sysfs.mask import Mask


class PartitionMode(StrEnum):
    """Which pods with exclusive CPUs are partitions of the kernel, and of which kind."""

    NEVER = "never"
    ASKED = "asked"
    ROOT = "root"
    ISOLATED = "isolated"


_LATENCY: Final = re.compile(r"[0-9]{1,9}|n/a", re.ASCII)
_GOVERNOR: Final = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_PREFERENCE: Final = re.compile(r"[a-z][a-z0-9_]{0,31}|[0-9]{1,3}", re.ASCII)
_KHZ: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def _written_as(fits: re.Pattern[str], rule: str) -> Kind[str]:
    """Return the kind of a text that has a pattern, or is ""."""

    def parse(text: str) -> str:
        if text and fits.fullmatch(text) is None:
            raise ValueError(f"{shown(text)} is not usable here: {rule}")
        return text

    text: Schema = {"type": ["string", "integer"], "pattern": f"^({fits.pattern})?$"}
    return text_kind("text", text, parse, amount=True)


def _setting(fits: re.Pattern[str], rule: str) -> str:
    """Declare a key of a power class: the text that is written; "" leaves the file as it is."""
    return key("", _written_as(fits, rule), rule)


def _check_class_name(reader: KeyReader, name: str, entry: Field) -> None:
    fault = label_fault(name)
    if fault is not None:
        reader.reject(entry, f"{shown(name)} is not the name of a class: {fault}")


class PowerClass(Section, frozen=True):
    """A class of `agent.isolation.powerClasses`, as the kernel's files have its values."""

    #: cpuidle: PM QoS, Documentation/ABI/testing/sysfs-devices-power.
    resume_latency: str = _setting(
        _LATENCY,
        "the longest wait of a CPU for its idle state to end, in microseconds; n/a for none, 0 for "
        "any",
    )
    governor: str = _setting(_GOVERNOR, "a cpufreq governor, such as performance")
    energy_preference: str = _setting(
        _PREFERENCE, "an energy preference of cpufreq, such as performance"
    )
    min_frequency: str = _setting(_KHZ, "the lowest frequency of a CPU in kHz")
    max_frequency: str = _setting(_KHZ, "the highest frequency of a CPU in kHz")
    uncore_min_frequency: str = _setting(
        # The hardware has steps of 100 MHz, to which the kernel rounds down.
        re.compile(r"[1-9][0-9]{0,3}00000", re.ASCII),
        "the lowest frequency of the uncore of the CPUs' packages in kHz, in steps of 100000 "
        "(Intel)",
    )


def _power_class(reader: KeyReader, name: str, entry: Field) -> PowerClass:
    _check_class_name(reader, name, entry)
    return read(reader, entry, PowerClass())


def _classes_of_memory(text: str) -> str:
    if fault := memory_classes_fault(text):
        raise ValueError(f"{shown(text)} is not usable here: {fault}")
    return text


_MEMORY: Final = text_kind(
    "never, asked, or classes of memory such as dram,hbm", {"type": "string"}, _classes_of_memory
)


def _memory_nodes(reader: KeyReader, name: str, entry: Field) -> Mask:
    _check_class_name(reader, name, entry)
    return NODE_LIST.read(reader, entry, EMPTY)


def _by_cache(value: str) -> str:
    """Return the pattern of a value for all caches, or of one for each of some: 0=X;1=Y."""
    return f"({value})|[0-9]{{1,4}}=({value})(;[0-9]{{1,4}}=({value})){{0,255}}"


_PERCENTAGE: Final = "([1-9][0-9]?|100)%"
_WAYS: Final = re.compile(_by_cache(f"{_PERCENTAGE}|0x[0-9a-fA-F]{{1,8}}"), re.ASCII)
_BANDWIDTH: Final = re.compile(_by_cache(f"{_PERCENTAGE}|[1-9][0-9]{{0,8}}"), re.ASCII)


class ResctrlClass(Section, frozen=True):
    """A class of `agent.isolation.resctrl.classes`, one control group of the kernel."""

    #: The names are those of the kernel's schemata: Documentation/filesystems/resctrl.rst.
    l3: str = key(
        "",
        _written_as(
            _WAYS,
            "L3 is a percentage such as 50%, a mask such as 0xff0, or one of these by cache id "
            "such as 0=50%;1=0xff0",
        ),
        'The part of each L3 cache as percentage or mask, or by cache id; "" for all that no '
        "exclusive class has.",
        name="L3",
    )
    mb: str = key(
        "",
        _written_as(
            _BANDWIDTH,
            "MB is a percentage such as 50%, a number as the kernel's schemata have it, or one of "
            "these by cache id such as 0=50%;1=100%",
        ),
        "The memory bandwidth as percentage, or as number of the kernel's unit (AMD: 1/8 GB/s), "
        'or by cache id; "" for no limit.',
        name="MB",
    )
    exclusive: bool = switch("Whether no other class and nothing else of the host has its L3.")


def _resctrl_class(reader: KeyReader, name: str, entry: Field) -> ResctrlClass:
    _check_class_name(reader, name, entry)
    return read(reader, entry, ResctrlClass())


class ResctrlConfig(Section, frozen=True):
    """`agent.isolation.resctrl`: classes of caches and memory bandwidth."""

    classes: Mapping[str, ResctrlClass] = key(
        MappingProxyType({}),
        mapping_kind(
            "mapping of names to classes",
            {"type": "string"},
            schema(ResctrlClass),
            _resctrl_class,
            written,
        ),
        "Parts of L3 caches and of memory bandwidth, by a name that pods ask for: L3 (a "
        "percentage or mask, for all caches or by id), MB (a percentage) and exclusive.",
        example='latency: {L3: "50%", exclusive: true}\nbatch: {L3: "20%", MB: "30%"}\n',
    )
    default_class: str = key(
        "",
        text_kind("name of a class", {"type": "string"}, str),
        'The class of pods with exclusive CPUs that ask for none; "" leaves them as they are.',
    )
    monitor_pods: bool = switch(
        "Whether each pod in a class is counted by itself, which takes one monitoring group "
        "(RMID) of the hardware."
    )


class IsolationConfig(Section, frozen=True):
    """`agent.isolation`; what is touched is restored when an item is switched off."""

    host_slices: bool = switch(
        "Whether services, sessions, virtual machines and containers of the host keep off "
        "exclusive CPUs: every cgroup at the top of the tree but the pods'."
    )
    host_except: tuple[str, ...] = key(
        (),
        CGROUP_NAMES,
        "Cgroups at the top that stay as they are; a name may end in *.",
        example="- ovs.slice\n",
    )
    host_cpus: Mask | None = key(
        None,
        CPU_LIST,
        "The CPUs that these cgroups stay on; of these they use what is not exclusive. "
        '"" is all CPUs.',
        name="hostCPUs",
    )
    kernel_threads: bool = switch(
        "Whether the kernel's threads that can be moved leave exclusive CPUs."
    )
    interrupts: IsolationMode = key(
        IsolationMode.NEVER,
        one_of(IsolationMode),
        "Whether interrupts, unbound workqueues, the steering of packets (RPS, XPS) and the "
        "lockup detectors keep off exclusive CPUs.",
        values={
            IsolationMode.NEVER: "they stay as they are",
            IsolationMode.ASKED: "off the CPUs of pods with the annotation "
            "isolation.numawarden.dev/interrupts",
            IsolationMode.ALWAYS: "off all exclusive CPUs",
        },
    )
    smt: IsolationMode = key(
        IsolationMode.NEVER,
        one_of(IsolationMode),
        "Whether the sibling threads of exclusive CPUs stay idle: a pod gets whole cores, one "
        "thread of each to use.",
        values={
            IsolationMode.NEVER: "no thread stays idle",
            IsolationMode.ASKED: "those of pods with the annotation "
            "isolation.numawarden.dev/smt: idle-siblings",
            IsolationMode.ALWAYS: "those of all pods with exclusive CPUs",
        },
    )
    memory: str = key(
        IsolationMode.NEVER,
        _MEMORY,
        "The classes of memory that pods may use: never for any, whatever their annotation says; "
        "asked for those of the annotation isolation.numawarden.dev/memory (dram,hbm or !cxl); or "
        "the classes of pods without the annotation. numawarden topology shows the class of each "
        "node.",
    )
    memory_classes: Mapping[str, Mask] = key(
        MappingProxyType({}),
        mapping_kind(
            "mapping of classes of memory to NUMA nodes",
            {"type": "string"},
            NODE_LIST.schema,
            _memory_nodes,
            NODE_LIST.written,
        ),
        "The NUMA nodes of a class of memory, where the host does not show it or shows another: "
        "dram, hbm, cxl, pmem, gpu, or a name of your own.",
        example="hbm: 2-3\n",
    )
    partitions: PartitionMode = key(
        PartitionMode.NEVER,
        one_of(PartitionMode),
        "Whether the pod's cgroup becomes a cpuset partition: the kernel itself takes exclusive "
        "CPUs from everything else.",
        values={
            PartitionMode.NEVER: "no pod's does, whatever its annotation says",
            PartitionMode.ASKED: "those of pods with the annotation "
            "isolation.numawarden.dev/partition: root or isolated",
            PartitionMode.ROOT: "those of all pods with exclusive CPUs, unless the annotation says "
            "off or isolated",
            PartitionMode.ISOLATED: "as root, and each thread stays where it was put: no load "
            "balancing, no unbound "
            "workqueues",
        },
    )
    power_classes: Mapping[str, PowerClass] = key(
        MappingProxyType({}),
        mapping_kind(
            "mapping of names to power classes",
            {"type": "string"},
            schema(PowerClass),
            _power_class,
            lambda value: {name: text for name, text in written(value).items() if text},
        ),
        "Idle states and frequencies for exclusive CPUs, by a name that pods ask for: "
        "resumeLatency (microseconds, n/a for no idle state), governor, energyPreference, "
        "minFrequency, maxFrequency, uncoreMinFrequency (kHz).",
        example="low-latency:\n  resumeLatency: n/a\n  governor: performance\n",
    )
    power: str = key(
        "",
        text_kind("name of a power class", {"type": "string"}, str),
        'The power class of exclusive CPUs whose pods ask for none; "" leaves them as they are.',
    )
    resctrl: ResctrlConfig = section(ResctrlConfig(), "Classes of L3 caches and memory bandwidth.")
