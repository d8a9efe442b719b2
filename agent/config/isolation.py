"""What is kept off exclusive CPUs beside other pods: the section `agent.isolation`.

Some items have classes: named sets of values, of which an annotation of a pod chooses one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.config.keys import Section, key, section, section_kind, switch
from agent.config.kinds import mapping_kind, matching, one_of, or_empty, text_kind
from agent.config.text_kinds import CGROUP_NAMES, CPU_LIST, NODE_LIST
from agent.managers.policy import IsolationMode
from agent.pods.model import label_fault, memory_classes_fault
from agent.values import KeyChoice
from agent.yaml import shown
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.kinds import KeyReader, Kind, Value
    from agent.yaml import Field
    from sysfs.mask import Mask


def _usable(pattern: str, rule: str) -> Kind[str]:
    """Return the kind of a text that the kernel takes, or ""; `rule` says what to write."""
    return or_empty(matching("text", pattern, f"usable here: {rule}", amount=True), "")


def _by_class(words: str, kind: Kind[Value], base: Value) -> Kind[Mapping[str, Value]]:
    """Return the kind of a mapping of names of classes to values of a kind."""
    return mapping_kind(words, {"type": "string"}, kind, base, _check_class_name)


def _check_class_name(reader: KeyReader, name: str, at: Field) -> None:
    fault = label_fault(name)
    if fault is not None:
        reader.reject(at, f"{shown(name)} is not the name of a class: {fault}")


def _power_setting(pattern: str, rule: str) -> str:
    """Declare a key of a power class; "" leaves the kernel's file as it is."""
    return key("", _usable(pattern, rule), rule)


class PowerClass(Section, frozen=True):
    """A class of `agent.isolation.powerClasses`; each value is as the kernel's file has it."""

    #: cpuidle: PM QoS, Documentation/ABI/testing/sysfs-devices-power.
    resume_latency: str = _power_setting(
        r"[0-9]{1,9}|n/a",
        "the longest wait of a CPU for its idle state to end, in microseconds; n/a for none, 0 for "
        "any",
    )
    governor: str = _power_setting(
        r"[a-z][a-z0-9_]{0,31}", "a cpufreq governor, such as performance"
    )
    energy_preference: str = _power_setting(
        r"[a-z][a-z0-9_]{0,31}|[0-9]{1,3}", "an energy preference of cpufreq, such as performance"
    )
    min_frequency: str = _power_setting(r"[1-9][0-9]{0,8}", "the lowest frequency of a CPU in kHz")
    max_frequency: str = _power_setting(r"[1-9][0-9]{0,8}", "the highest frequency of a CPU in kHz")
    #: The hardware has steps of 100 MHz, to which the kernel rounds down.
    uncore_min_frequency: str = _power_setting(
        r"[1-9][0-9]{0,3}00000",
        "the lowest frequency of the uncore of the CPUs' packages in kHz, in steps of 100000 "
        "(Intel)",
    )


def _for_caches(value: str) -> str:
    """Return the pattern of one value for all caches (X), or of values by cache id (0=X;1=Y)."""
    return f"({value})|[0-9]{{1,4}}=({value})(;[0-9]{{1,4}}=({value})){{0,255}}"


_PERCENTAGE: Final = "([1-9][0-9]?|100)%"


class ResctrlClass(Section, frozen=True):
    """A class of `agent.isolation.resctrl.classes`, one control group of the kernel."""

    #: The names are those of the kernel's schemata: Documentation/filesystems/resctrl.rst.
    l3: str = key(
        "",
        _usable(
            _for_caches(f"{_PERCENTAGE}|0x[0-9a-fA-F]{{1,8}}"),
            "L3 is a percentage such as 50%, a mask such as 0xff0, or one of these by cache id "
            "such as 0=50%;1=0xff0",
        ),
        'The part of each L3 cache as percentage or mask, or by cache id; "" is every part that no '
        "exclusive class has.",
        name="L3",
    )
    mb: str = key(
        "",
        _usable(
            _for_caches(f"{_PERCENTAGE}|[1-9][0-9]{{0,8}}"),
            "MB is a percentage such as 50%, a number as the kernel's schemata have it, or one of "
            "these by cache id such as 0=50%;1=100%",
        ),
        "The memory bandwidth as percentage or in the kernel's unit (AMD: 1/8 GB/s), or by cache "
        'id; "" sets no limit.',
        name="MB",
    )
    exclusive: bool = switch("Whether nothing else of the host, in a class or not, uses its L3.")


class ResctrlConfig(Section, frozen=True):
    """Classes of L3 caches and memory bandwidth."""

    classes: Mapping[str, ResctrlClass] = key(
        MappingProxyType({}),
        _by_class("mapping of names to classes", section_kind(ResctrlClass), ResctrlClass()),
        "Parts of L3 caches and of memory bandwidth, by a name that pods ask for.",
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


class PartitionMode(KeyChoice):
    """Which pods with exclusive CPUs are partitions of the kernel, and of which kind."""

    NEVER = "never", "no pod, whatever its annotation says"
    ASKED = "asked", "pods with the annotation isolation.numawarden.dev/partition: root or isolated"
    ROOT = "root", "all pods with exclusive CPUs, unless the annotation says off or isolated"
    ISOLATED = "isolated", "as root, without load balancing and unbound workqueues on the CPUs"


def _memory_classes(text: str) -> str:
    if fault := memory_classes_fault(text):
        raise ValueError(f"{shown(text)} is not usable here: {fault}")
    return text


class IsolationConfig(Section, frozen=True):
    """What else keeps off exclusive CPUs. docs/isolation.md says what each item needs."""

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
        'The CPUs of all others without a set of their own, less exclusive ones; "" is all CPUs.',
        name="hostCPUs",
    )
    kernel_threads: bool = switch(
        "Whether the kernel's threads that can be moved leave exclusive CPUs."
    )
    interrupts: IsolationMode = key(
        IsolationMode.NEVER,
        one_of(
            {
                IsolationMode.NEVER: "they stay as they are",
                IsolationMode.ASKED: "off the CPUs of pods with the annotation "
                "isolation.numawarden.dev/interrupts",
                IsolationMode.ALWAYS: "off all exclusive CPUs",
            }
        ),
        "Whether interrupts, unbound workqueues, the steering of packets (RPS, XPS) and the "
        "lockup detectors keep off exclusive CPUs.",
    )
    smt: IsolationMode = key(
        IsolationMode.NEVER,
        one_of(
            {
                IsolationMode.NEVER: "no thread stays idle",
                IsolationMode.ASKED: "those of pods with the annotation "
                "isolation.numawarden.dev/smt: idle-siblings",
                IsolationMode.ALWAYS: "those of all pods with exclusive CPUs",
            }
        ),
        "Whether the sibling threads of exclusive CPUs stay idle: a pod gets whole cores, one "
        "thread of each to use.",
    )
    memory: str = key(
        IsolationMode.NEVER,
        text_kind(
            "never, asked, or classes of memory such as dram,hbm",
            {"type": "string"},
            _memory_classes,
        ),
        "The classes of memory that pods may use: never for any, whatever their annotation says; "
        "asked for those of the annotation isolation.numawarden.dev/memory (dram,hbm or !cxl); or "
        "the classes of pods without the annotation. numawarden topology shows the class of each "
        "node.",
    )
    memory_classes: Mapping[str, Mask] = key(
        MappingProxyType({}),
        _by_class("mapping of classes of memory to NUMA nodes", NODE_LIST, EMPTY),
        "The NUMA nodes of a class of memory, where the host does not show it or shows another: "
        "dram, hbm, cxl, pmem, gpu, or a name of your own.",
        example="hbm: 2-3\n",
    )
    partitions: PartitionMode = key(
        PartitionMode.NEVER,
        one_of(PartitionMode),
        "Which pods' cgroups become cpuset partitions: the kernel itself takes exclusive CPUs from "
        "everything else.",
    )
    power_classes: Mapping[str, PowerClass] = key(
        MappingProxyType({}),
        _by_class("mapping of names to power classes", section_kind(PowerClass), PowerClass()),
        "Idle states and frequencies for exclusive CPUs, by a name that pods ask for.",
        example="low-latency:\n  resumeLatency: n/a\n  governor: performance\n",
    )
    power: str = key(
        "",
        text_kind("name of a power class", {"type": "string"}, str),
        'The power class of exclusive CPUs whose pods ask for none; "" leaves them as they are.',
    )
    resctrl: ResctrlConfig = section(ResctrlConfig())
