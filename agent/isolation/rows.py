"""Which host-wide settings there are, and what each is to be: a table and pure functions of it.

A setting is one place that is read and written as text (`agent.isolation.places`). In goes what is
configured and what pods have (`isolated_cpus`, `partition_words`), out comes what each place is to
be (`desired_settings`) and the text for that (`text_to_write`), which follows from its original: a
set of CPUs loses those that it has to keep off, and is all others where nothing would be left. So a
setting that touches no exclusive CPU is never written, and what another program has chosen stays as
far as it can.

Sources: Documentation/core-api/irq/irq-affinity.rst, Documentation/core-api/workqueue.rst,
Documentation/networking/scaling.rst, Documentation/admin-guide/lockup-watchdogs.rst,
Documentation/admin-guide/pm/cpufreq.rst and intel_uncore_frequency_scaling.rst of Linux 6.12.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode, PowerClass
from agent.isolation.places import (
    AFFINITY,
    BANNED,
    DEFAULT_IRQ,
    IRQ,
    TASKS,
    Form,
    cpus_of,
    same,
    text_of,
)
from agent.managers.allocation import Isolation
from agent.managers.policy import IsolationMode
from agent.pods.model import (
    INTERRUPTS,
    MEMORY_CLASSES,
    NO_PARTITION,
    OWN_DEVICES,
    PARTITION,
    POWER,
    RESCTRL,
    SMT,
    QosClass,
    full_name,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from agent.isolation.places import HostPlaces
    from agent.managers.allocation import PodAllocation


class IsolationItem(StrEnum):
    """What can be kept off exclusive CPUs."""

    HOST_SLICES = "hostSlices"
    KERNEL_THREADS = "kernelThreads"
    INTERRUPTS = "interrupts"
    POWER = "power"
    PARTITIONS = "partitions"
    RESCTRL = "resctrl"


class Row(Struct, frozen=True):
    """Settings of one item that have one name: where they are, and what it means without any."""

    item: IsolationItem
    #: Below the host's root, with `*` for any name; `{cpu}` is the number of an exclusive CPU,
    #: `{package}` the package of one.
    pattern: str
    #: Why the host has none of these; "" where that is nothing to report.
    missing: str = ""
    #: Only where a set is there already: an empty one means that the kernel does not use it.
    where_set: bool = False
    #: What of a power class is written, "" for a set of CPUs.
    value: str = ""


_CPU: Final = "sys/devices/system/cpu/"
_FREQUENCY: Final = f"{_CPU}cpu{{cpu}}/cpufreq/"
_NO_FREQUENCY: Final = "the host has no cpufreq driver that offers it (a virtual machine, usually)"

#: In the order of the writes: the default before the interrupts, which come from it.
ROWS: Final = (
    Row(IsolationItem.INTERRUPTS, BANNED),
    Row(IsolationItem.INTERRUPTS, DEFAULT_IRQ, "the kernel shows no interrupts"),
    Row(IsolationItem.INTERRUPTS, f"{IRQ}*{AFFINITY}"),
    Row(IsolationItem.INTERRUPTS, "sys/devices/virtual/workqueue/cpumask"),
    Row(IsolationItem.INTERRUPTS, "sys/class/net/*/queues/*/rps_cpus", where_set=True),
    Row(IsolationItem.INTERRUPTS, "sys/class/net/*/queues/*/xps_cpus", where_set=True),
    # What the queues of interfaces that come later begin with.
    Row(IsolationItem.INTERRUPTS, "proc/sys/net/core/rps_default_mask", where_set=True),
    Row(IsolationItem.INTERRUPTS, "proc/sys/kernel/watchdog_cpumask"),
    Row(IsolationItem.KERNEL_THREADS, f"{TASKS}*"),
    Row(
        IsolationItem.POWER,
        f"{_CPU}cpu{{cpu}}/power/pm_qos_resume_latency_us",
        "the kernel has no PM QoS of CPUs (CONFIG_PM)",
        value="resume_latency",
    ),
    # The governor first: some reset the preference, and `powersave` of intel_pstate has none.
    *(
        Row(IsolationItem.POWER, f"{_FREQUENCY}{file}", _NO_FREQUENCY, value=value)
        for file, value in (
            ("scaling_governor", "governor"),
            ("energy_performance_preference", "energy_preference"),
            ("scaling_max_freq", "max_frequency"),
            ("scaling_min_freq", "min_frequency"),
        )
    ),
    Row(
        IsolationItem.POWER,
        f"{_CPU}intel_uncore_frequency/package_{{package}}_die_*/min_freq_khz",
        "the host has no intel_uncore_frequency driver",
        value="uncore_min_frequency",
    ),
)


class IsolatedCpus(Struct, frozen=True):
    """What is asked of host-wide settings: by the configuration, and by pods with exclusive CPUs.

    `online` are the CPUs of the host that are online. `avoided` are the CPUs that each item keeps
    off. `devices` are, by the id of a device, the CPUs of the pod that asked for its interrupts.
    `classes` are the power classes of CPUs. `partitions` are the CPUs of partitions. `resctrl` has,
    by class of caches and bandwidth, the uids of its pods, which may have no exclusive CPUs.
    `unmet` says, by subject, what a pod asks for and the configuration does not give.
    """

    online: Mask
    avoided: Mapping[IsolationItem, Mask] = MappingProxyType({})
    devices: Mapping[str, Mask] = MappingProxyType({})
    classes: Mapping[int, PowerClass] = MappingProxyType({})
    resctrl: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    partitions: Mask = EMPTY
    unmet: Mapping[str, str] = MappingProxyType({})


def isolated_cpus(
    config: IsolationConfig,
    allocations: Collection[PodAllocation],
    online: Mask,
    partitions: Collection[str] = (),
) -> IsolatedCpus:
    """Return what pods have of the items, by configuration and annotations.

    `partitions` are the pods (uids) that are partitions.
    """
    exclusive, interrupts, partitioned = EMPTY, EMPTY, EMPTY
    devices: dict[str, Mask] = {}
    classes: dict[int, PowerClass] = {}
    concerned = [pod for pod in allocations if pod.exclusive_cpus or pod.isolation]
    groups, unmet = _of_any_pod(config, concerned)
    for pod in concerned:
        cpus = pod.exclusive_cpus
        subject = f"isolation of pod {full_name(pod)}"
        if not cpus:
            if of_cpus := sorted(pod.isolation.keys() - {RESCTRL, MEMORY_CLASSES}):
                items = " and ".join(of_cpus)
                unmet[subject] = f"it asks for {items} and has no exclusive CPUs"
            continue
        exclusive |= cpus
        partitioned |= cpus if pod.uid in partitions else EMPTY
        asked = pod.isolation.get(INTERRUPTS)
        if config.interrupts is IsolationMode.ALWAYS or (
            asked and config.interrupts is IsolationMode.ASKED
        ):
            interrupts |= cpus
            if asked == OWN_DEVICES:
                busy = cpus - pod.idle
                devices |= {device: busy for _, _, device in pod.allocated_devices()}
        elif asked:
            unmet[subject] = "it asks for interrupts, and agent.isolation.interrupts is never"
        if SMT in pod.isolation and config.smt is IsolationMode.NEVER:
            unmet[subject] = "it asks for smt, and agent.isolation.smt is never"
        name = pod.isolation.get(POWER, config.power)
        if name in config.power_classes:
            # Not idle siblings: one that may not sleep polls, and takes time of its core.
            classes |= dict.fromkeys(cpus - pod.idle, config.power_classes[name])
        elif name:
            unmet[subject] = f"agent.isolation.powerClasses has no {name}"
    threads = exclusive if config.kernel_threads else EMPTY
    avoided = {
        IsolationItem.HOST_SLICES: exclusive if config.host_slices else EMPTY,
        IsolationItem.KERNEL_THREADS: threads,
        IsolationItem.INTERRUPTS: interrupts,
    }
    return IsolatedCpus(
        online,
        MappingProxyType({item: cpus for item, cpus in avoided.items() if cpus}),
        MappingProxyType(devices),
        MappingProxyType(classes),
        MappingProxyType({name: tuple(uids) for name, uids in groups.items()}),
        partitioned,
        MappingProxyType(unmet),
    )


def _of_any_pod(
    config: IsolationConfig, allocations: Iterable[PodAllocation]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the pods of each class of caches, and by subject why a pod does not get what it asks.

    Of the items that need no exclusive CPUs.
    """
    groups: dict[str, list[str]] = {}
    unmet = {}
    for pod in allocations:
        if MEMORY_CLASSES in pod.isolation and config.memory == IsolationMode.NEVER:
            subject = f"isolation of pod {full_name(pod)} memory"
            unmet[subject] = "it asks for memory, and agent.isolation.memory is never"
        usual = config.resctrl.default_class if pod.exclusive_cpus else ""
        name = pod.isolation.get(RESCTRL, usual)
        if name in config.resctrl.classes:
            groups.setdefault(name, []).append(pod.uid)
        elif name:
            subject = f"isolation of pod {full_name(pod)} resctrl"
            unmet[subject] = f"agent.isolation.resctrl.classes has no {name}"
    return groups, unmet


_ON_REQUEST: Final = frozenset({PartitionMode.NEVER, PartitionMode.ASKED})


def partition_words(
    config: IsolationConfig, allocations: Iterable[PodAllocation], elsewhere: Collection[str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the kind of partition by pod (uid), and by subject why a pod that asks is none.

    A partition has its own CPUs and no others: one that is bound to a cgroup `elsewhere` (uids of
    such pods) would lose the pod's. Of a pod with a container in the node's shared pool containers
    are partitions, and not the pod.
    """
    words: dict[str, str] = {}
    unmet: dict[str, str] = {}
    mode = config.partitions
    for pod in allocations:
        word = pod.isolation.get(PARTITION, NO_PARTITION if mode in _ON_REQUEST else str(mode))
        if word == NO_PARTITION or not pod.exclusive_cpus:
            continue
        if mode is PartitionMode.NEVER:
            why = "agent.isolation.partitions is never"
        elif pod.qos is not QosClass.GUARANTEED:
            why = f"its cgroup is among those of the class {pod.qos}"
        elif pod.uid in elsewhere:
            why = "a container of it is bound to a cgroup elsewhere"
        else:
            words[pod.uid] = word
            shares = any(one.isolation is Isolation.HOST for one in pod.containers)
            if not (pod.idle and shares):
                continue
            why = (
                "a container of it runs in the node's shared pool, so that its containers with "
                "exclusive CPUs are, without the idle siblings"
            )
        unmet[f"partition of pod {full_name(pod)}"] = f"it is not a partition: {why}"
    return words, unmet


class DesiredSetting(Struct, frozen=True, cache_hash=True):
    """What settings are to be: hundreds of interrupts are to be the same, and show few texts."""

    row: Row
    #: How the text of the places is a value.
    form: Form
    #: The text, "" for a set of CPUs.
    word: str = ""
    #: The CPUs that the set is to be without, and those that may be in it.
    avoided: Mask = EMPTY
    online: Mask = EMPTY
    #: The whole set, where it follows from a device or a node and not from what was there before.
    given: Mask = EMPTY


@lru_cache(maxsize=64)
def has_to_change(desired: DesiredSetting, shown: str) -> bool:
    """Return whether what is shown has to change in any case; raises `ValueError`."""
    form = desired.form
    if form is Form.WORD:
        return not same(form, shown, desired.word)
    cpus = cpus_of(form, shown)
    if form is Form.AVOIDED:
        return not desired.avoided <= cpus
    if desired.given:
        return cpus != desired.given
    return not (cpus.isdisjoint(desired.avoided) or desired.online <= desired.avoided)


@lru_cache(maxsize=64)
def text_instead(desired: DesiredSetting, original: str) -> str:
    """Return what is to be written where `original` was; raises `ValueError`."""
    form, avoided, online = desired.form, desired.avoided, desired.online
    if form is Form.WORD:
        return desired.word
    cpus = cpus_of(form, original)
    if form is Form.AVOIDED:
        return text_of(form, cpus | avoided)
    left = desired.given or (cpus - avoided) & online or online - avoided
    return text_of(form, left or cpus)


def text_to_write(desired: DesiredSetting, shown: str, original: str | None) -> str | None:
    """Return what has to be written where `shown` is, None for nothing; raises `ValueError`.

    `original` is None where another program chose what is shown: that stays if it can.
    """
    form = desired.form
    if desired.row.where_set and not cpus_of(form, shown):
        return None
    changes = has_to_change(desired, shown)
    if original is None:
        return text_instead(desired, shown) if changes else None
    text = text_instead(desired, original)
    return text if changes or not same(form, shown, text) else None


def desired_settings(asked: IsolatedCpus, host: HostPlaces) -> Iterator[tuple[str, DesiredSetting]]:
    """Yield the places that are to differ from their originals, in the order of the table.

    A place that does not exist is among them where the row says why the host may have none.
    """
    given = {
        f"{IRQ}{irq}{AFFINITY}": cpus
        for device, cpus in asked.devices.items()
        for irq in host.irqs_of(device)
    }
    threads = asked.avoided.get(IsolationItem.KERNEL_THREADS, EMPTY) | asked.partitions
    # A change of a partition moves these to all CPUs in none (up to Linux 6.19).
    reclaiming = host.node_threads() if asked.partitions else ()
    given |= {place: host.cpus_of_node(place) - threads for place in reclaiming}
    for row in ROWS:
        form = host.at(row.pattern).form
        avoided, places = asked.avoided.get(row.item, EMPTY), reclaiming
        if row.value:
            for pattern, word in _words(row, asked.classes, host).items():
                desired = DesiredSetting(row, form, word)
                yield from ((place, desired) for place in _places(row, pattern, host))
            continue
        if avoided:
            places = _places(row, row.pattern, host)
        elif row.item is not IsolationItem.KERNEL_THREADS:
            continue
        usual = DesiredSetting(row, form, "", avoided or threads, asked.online)
        for place in places:
            yield place, replace(usual, given=given[place]) if place in given else usual


def _places(row: Row, pattern: str, host: HostPlaces) -> Sequence[str]:
    return host.find(pattern) or ((pattern,) if row.missing else ())


def _words(row: Row, classes: Mapping[int, PowerClass], host: HostPlaces) -> Mapping[str, str]:
    """Return the words of a row by pattern: what CPUs share has the highest of theirs."""
    words: dict[str, str] = {}
    for cpu, power in classes.items():
        word = getattr(power, row.value)
        if not word:
            continue
        package = host.package_of(cpu) if "{package}" in row.pattern else ""
        pattern = row.pattern.format(cpu=cpu, package=package)
        former = words.get(pattern, "")
        words[pattern] = max((former, word), key=lambda text: (len(text), text))
    return words
