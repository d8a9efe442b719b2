"""The one comparison: what a cgroup shows against what is desired of it.

`diff` compares a cgroup that was read with its setting and reads nothing. `assess` reads what
shows the cause of a difference: the ancestors of a set that is not effective, and the
`WriterRecords` that the caller passes (what systemd would write from its unit properties, and what
the container runtime set last or would send again), since the kernel does not record which process
changed a setting. Where the agent may watch writes, the difference names the process beside its
cause (`cgroupfs.writers`). The rules, first match wins:

1. the file is missing: `controller lost` (an ancestor no longer passes it on);
2. the file shows what was desired but the effective set differs: `CPU offline`, `CPU withheld`,
   `parent too narrow` or `inherited`, see `why_not_effective`; a memory limit was not written
   because more is in use: `in use`; the kernel calls a partition invalid: `invalid partition`;
3. the file shows the runtime's value: `runtime update`, also where systemd has the same value. A
   runtime of the systemd driver sets a unit's properties before it writes the files, so both have
   the value, and the runtime is the one that changed it;
4. the file shows systemd's value: `reverted by systemd`, whether systemd wrote the file again or
   another process changed the unit's properties;
5. anything else: `unknown`.

Where the kubelet makes the cgroups, quotas that it writes itself or has the runtime write are its
normal work: `kubelet`, which is not drift, as `inherited` is not: what changed is a cgroup above.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.desired import BY_POD, KnownChanges, Role
from agent.reconcile.withheld import owners_of
from cgroupfs import apply as controllers
from cgroupfs.partitions import is_partition
from cgroupfs.plan import is_below_use, sets_of
from cgroupfs.settings import (
    CPU_MAX,
    CPUS,
    EFFECTIVE,
    EXCLUSIVE,
    EXCLUSIVE_EFFECTIVE,
    MEMS,
    PARTITION,
    partition_fault,
)
from cgroupfs.state import CPUS_EFFECTIVE
from cgroupfs.tree import ancestors, parent
from sysfs.host import WithheldCpus, union_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.desired import DesiredCgroup
    from agent.reconcile.pod_cgroups import LocatedPod
    from cgroupfs.state import CgroupState, Writer, WriterRecord
    from cgroupfs.tree import CgroupTree


_SEE: Final = "see docs/isolation.md, Partitions"
#: By the kernel's reason (perr_strings in kernel/cgroup/cpuset.c): "" where a cgroup beside the
#: partition named one of its CPUs later.
_REMEDIES: Final = {
    "": "a cgroup beside it lists one of its CPUs: narrow that",
    "Cpu list in cpuset.cpus not exclusive": "a cgroup beside it lists one of its CPUs: narrow it",
    "Enable partition not permitted": "give the unit the drop-in deploy/partitions.conf",
    "partition config conflicts with housekeeping setup": "isolcpus= of the kernel's command line "
    "has one of its CPUs: remove that, or from Linux 7.0 on make it an isolated partition",
}
_ISOLATED: Final = "cpuset.cpus.isolated"
#: The `file` of a difference that says that the cgroup itself is missing.
GONE: Final = ""
_SET_OF: Final = {effective: file for file, effective in EFFECTIVE.items()}


class Cause(StrEnum):
    """Why a cgroup differs from what is desired."""

    REVERTED_BY_SYSTEMD = "reverted by systemd"
    RUNTIME_UPDATE = "runtime update"
    PARENT_TOO_NARROW = "parent too narrow"
    #: The set of a cgroup above that has more than it should: a difference of its own.
    INHERITED = "inherited"
    CPU_OFFLINE = "CPU offline"
    #: A partition elsewhere has it, or a cgroup above the pods lacks it.
    CPU_WITHHELD = "CPU withheld"
    CONTROLLER_LOST = "controller lost"
    IN_USE = "in use"
    INVALID_PARTITION = "invalid partition"
    #: The quota that the kubelet gives pods and containers that it makes or resizes.
    KUBELET = "kubelet"
    UNKNOWN = "unknown"


#: What no other process changed in the cgroup that differs.
NO_DRIFT: Final = frozenset({Cause.KUBELET, Cause.INHERITED})


class Difference(Struct, frozen=True):
    """One setting that the kernel or systemd does not enforce.

    `pod` is the uid, "" where no pod of the ledger is concerned. `file` is the file that differs:
    `*.effective` when the setting is written but not effective, `cgroup.subtree_control` for an
    ancestor that lost a controller, "" where no single file is concerned. `desired` and `observed`
    are its texts (None: the file does not exist). `detail` is one line with cause and remedy.
    `writer` is the process that wrote the file last, None where it is not known. `beyond` are the
    CPUs that processes of the cgroup may use and should not.
    """

    cgroup: str
    detail: str
    cause: Cause
    pod: str = ""
    container: str | None = None
    file: str = ""
    desired: str = ""
    observed: str | None = None
    writer: Writer | None = None
    beyond: Mask = EMPTY

    @property
    def named(self) -> Mask:
        """The CPUs beyond what is desired that the cgroup has, or that its file names."""
        if self.file != CPUS:
            return self.beyond
        return self.beyond | Mask.parse(self.observed or "") - Mask.parse(self.desired)

    @property
    def is_written(self) -> bool:
        """Whether the file can be written: an effective set is what the kernel makes of others."""
        return self.file not in _SET_OF


#: Returns who wrote a file of a cgroup last, None where that is not known.
WriterOf: TypeAlias = "Callable[[str, str], Writer | None]"


def unknown_writer(_cgroup: str, _file: str) -> None:
    """Return None for every file: no process that writes is known."""


class WriterRecords(Struct, frozen=True):
    """What systemd (unit properties) and the runtime (its state or spec) have on record."""

    systemd: WriterRecord | None = None
    runtime: WriterRecord | None = None


def diff(item: DesiredCgroup, state: CgroupState | None) -> tuple[Difference, ...]:
    """Return how a cgroup differs from what is desired; empty when it is as desired.

    `state` None: the cgroup does not exist. Only a pod's own cgroup must: a container that is gone
    has ended, and the agent's cgroups above the pods are made with the first pod.
    """
    setting = item.setting
    if state is None:
        return (_missing(item),) if item.role is Role.POD else ()
    found: list[Difference] = []
    if setting.cpus is not None or setting.whole_cpus.bits:
        found.extend(_of_set(item, state, CPUS))
    if setting.mems is not None or setting.whole_mems.bits:
        found.extend(_of_set(item, state, MEMS))
    if values := setting.differing(state.values):
        found.extend(_of_value(item, state, file, text) for file, text in values.items())
    return tuple(found)


def _of_set(item: DesiredCgroup, state: CgroupState, file: str) -> tuple[Difference, ...]:
    """Compare a set and the effective one; a cgroup without the controller inherits as well."""
    desired, whole, written, effective = sets_of(item.setting, state, file)
    found: Difference | None = None
    if whole.bits:
        if written is not None and written.bits and not whole <= written:
            found = _own_set(item, file, whole, written)
    elif desired not in (None, written):
        found = _difference(item, file, str(desired), None if written is None else str(written))
    if desired is None or effective is None or effective.bits == desired.bits:
        return () if found is None else (found,)
    given = item.setting.given
    if found is None and file == CPUS and given.bits and desired - given <= effective <= desired:
        return ()
    found = found or _difference(item, EFFECTIVE[file], str(desired), str(effective))
    return (replace(found, beyond=effective - desired) if file == CPUS else found,)


def _own_set(item: DesiredCgroup, file: str, whole: Mask, written: Mask) -> Difference:
    """Return the difference of a cgroup that has a set of its own instead of its parent's."""
    difference = _difference(item, file, str(whole), str(written))
    path = item.setting.cgroup
    detail = f"{file} of /{path} shows {written}, a set of its own; it should have its parent's"
    return replace(difference, detail=detail)


def _of_value(item: DesiredCgroup, state: CgroupState, file: str, desired: str) -> Difference:
    difference = _difference(item, file, desired, state.values.get(file))
    fault = partition_fault(difference.observed or "") if file == PARTITION else None
    if fault is not None:
        detail = (
            f"/{item.setting.cgroup} is not a partition: the kernel shows "
            f"'{difference.observed}'; {_REMEDIES.get(fault, _SEE)}"
        )
        return replace(difference, cause=Cause.INVALID_PARTITION, detail=detail)
    if difference.observed is None or not is_below_use(desired, state.in_use, file):
        return difference
    # The current use is left out: it changes all the time, and an unchanged text is logged once.
    detail = (
        f"{difference.detail}: more than that is in use, and the kernel would kill "
        "processes for the limit; the limit is written once less is in use"
    )
    return replace(difference, cause=Cause.IN_USE, detail=detail)


def _difference(item: DesiredCgroup, file: str, desired: str, observed: str | None) -> Difference:
    path, cause = item.setting.cgroup, Cause.UNKNOWN
    detail = f"{file} of /{path} shows {observed or 'nothing'} instead of {desired}"
    if observed is None:
        cause = Cause.CONTROLLER_LOST
        detail = f"/{path} has no {file}: its controller was disabled above it"
    return Difference(path, detail, cause, item.pod, item.container, file, desired, observed)


def _missing(item: DesiredCgroup) -> Difference:
    path = item.setting.cgroup
    detail = f"/{path} does not exist; it was removed, or never created"
    return Difference(path, detail, Cause.UNKNOWN, item.pod, item.container, GONE)


def assess(
    tree: CgroupTree,
    differing: Sequence[tuple[DesiredCgroup, tuple[Difference, ...]]],
    recorded: Callable[[str], WriterRecords],
    needed: tuple[str, ...],
    writer_of: WriterOf = unknown_writer,
) -> tuple[Difference, ...]:
    """Return the differences with their causes, and the ancestors that lost controllers.

    `recorded` returns what systemd and the runtime have on record of a cgroup; it is called once
    for each cgroup with a file that another process may have written. `needed` are the controllers
    that every cgroup must have. `writer_of` is asked about each file that shows something else than
    desired, not about effective sets, which the kernel computes. Raises `OSError` as the tree does.
    """
    found = list(_lost_controllers(tree, [item for item, _ in differing], needed))
    for item, differences in differing:
        cgroup = item.setting.cgroup
        # The directory of a cgroup that is being removed may still exist without its files.
        lacking = any(each.observed is None for each in differences)
        if lacking and item.role is not Role.POD and not tree.exists(cgroup):
            continue
        records: WriterRecords | None = None
        for difference in differences:
            if difference.file in _SET_OF:
                found.append(_not_effective(tree, difference))
            elif difference.cause is Cause.UNKNOWN and difference.observed is not None:
                records = records or recorded(cgroup)
                found.append(_named(difference, records))
            elif difference.file == CPUS and difference.observed is None:
                beyond = _has_without_cpuset(tree, cgroup) - Mask.parse(difference.desired)
                found.append(replace(difference, beyond=beyond))
            else:
                found.append(difference)
    return tuple(_with_writer(difference, writer_of) for difference in found)


def _has_without_cpuset(tree: CgroupTree, path: str) -> Mask:
    """Return the CPUs of a cgroup without the cpuset controller: of the nearest one with it."""
    for above in reversed(ancestors(path)):
        (text,) = tree.read_many(above, (CPUS_EFFECTIVE,))
        if text is not None:
            return Mask.parse(text)
    return EMPTY


def _with_writer(difference: Difference, writer_of: WriterOf) -> Difference:
    if difference.observed is None or difference.file in _SET_OF:
        return difference
    writer = writer_of(difference.cgroup, difference.file)
    return difference if writer is None else replace(difference, writer=writer)


def _lost_controllers(
    tree: CgroupTree, items: Sequence[DesiredCgroup], needed: tuple[str, ...]
) -> Iterator[Difference]:
    owners = {item.setting.cgroup: item for item in items}
    wanting: dict[str, tuple[str, ...]] = {}
    for item in items:
        names = item.needed(needed)
        # A runtime chooses the controllers of its subgroup; only the sets matter there.
        if item.role is Role.SUBGROUP:
            names = tuple(name for name in names if name == controllers.CPUSET)
        for above in ancestors(item.setting.cgroup):
            if len(names) > len(wanting.get(above, ())):
                wanting[above] = names
    for path, names in wanting.items():
        difference = _lost(tree, path, names)
        if difference is not None:
            owner = owners.get(path)
            known = (owner.pod, owner.container) if owner is not None else ("", None)
            yield replace(difference, pod=known[0], container=known[1])


def _lost(tree: CgroupTree, path: str, needed: Sequence[str]) -> Difference | None:
    try:
        shown = tree.read(path, controllers.ENABLED).split()
    except FileNotFoundError:
        return None
    lost = [name for name in needed if name not in shown]
    if not lost:
        return None
    detail = f"/{path} no longer passes {' and '.join(lost)} on to its children; enable it again"
    return Difference(
        path,
        detail,
        Cause.CONTROLLER_LOST,
        file=controllers.ENABLED,
        desired=" ".join(needed),
        observed=" ".join(shown),
    )


def _not_effective(tree: CgroupTree, difference: Difference) -> Difference:
    desired, effective = Mask.parse(difference.desired), Mask.parse(difference.observed or "")
    cause, detail = why_not_effective(
        tree, difference.cgroup, _SET_OF[difference.file], desired, effective
    )
    return replace(difference, cause=cause, detail=detail)


def _gone(tree: CgroupTree, path: str, cpus: Mask) -> tuple[Mask, tuple[WithheldCpus, ...]]:
    """Return which of the CPUs are offline, and which are withheld from a cgroup, and by what.

    Neither are those that the root has, and those of isolated partitions elsewhere that are not
    found.
    """
    root, isolated, member = tree.read_many("", (CPUS_EFFECTIVE, _ISOLATED, PARTITION))
    lacking = cpus - Mask.parse(root or "")
    withheld = owners_of(tree, lacking, path) if lacking else ()
    lacking -= union_of(withheld) | (Mask.parse(isolated or "") - _own_partitions(tree, path))
    if lacking and member is not None:  # not the host's root: a container's, say
        return EMPTY, (*withheld, WithheldCpus(lacking, "/", Mask.parse(root or "")))
    return lacking, withheld


def _own_partitions(tree: CgroupTree, path: str) -> Mask:
    """Return the CPUs, offline ones too, of the partitions that a cgroup is or is in."""
    own = EMPTY
    for at in (*ancestors(path)[1:], path):
        with suppress(FileNotFoundError):
            word, *sets = tree.read_many(at, (PARTITION, EXCLUSIVE, EXCLUSIVE_EFFECTIVE))
            if is_partition(word):
                own |= Mask.union(Mask.parse(text or "") for text in sets)
    return own


def why_not_effective(
    tree: CgroupTree, path: str, file: str, desired: Mask, effective: Mask
) -> tuple[Cause, str]:
    """Return why `effective` of `file` is not the `desired`: the cause and one sentence.

    `file` is `cpuset.cpus` or `cpuset.mems`. Checked in this order: CPUs that a partition elsewhere
    has or that are offline, the cgroup's own partition, the topmost ancestor that lacks some of the
    set (those below it cannot have more), and whether the cgroup has the wider set of the one
    above, as it has none of its own.
    """
    if file == CPUS:
        offline, withheld = _gone(tree, path, desired - effective)
        gone = offline | union_of(withheld)
        if gone and (desired - gone or effective) == effective:
            cause = Cause.CPU_WITHHELD if withheld else Cause.CPU_OFFLINE
            return cause, _why_gone(offline, withheld, desired, effective)
        word, given = tree.read_many(path, (PARTITION, EXCLUSIVE_EFFECTIVE))
        if is_partition(word) and not desired <= Mask.parse(given or ""):
            return Cause.INVALID_PARTITION, (
                f"the kernel gave the partition only {given.strip() if given else ''} of "
                f"{desired}: a cgroup beside it has the others"
            )
    narrow = _too_narrow(tree, path, file, desired)
    if narrow is not None:
        above, has = narrow
        return Cause.PARENT_TOO_NARROW, (
            f"/{above} has only {has} of {desired} (missing {desired - has}), so the kernel uses "
            f"{effective} without an error; widen /{above} first"
        )
    if desired <= effective and Mask.parse(tree.read_many(path, (file,))[0] or "") != desired:
        return Cause.INHERITED, (
            f"/{path} inherits {effective} from /{parent(path)} instead of {desired}: the {file} "
            "of a cgroup above differs"
        )
    return Cause.UNKNOWN, (
        f"the kernel uses {effective} in /{path} instead of {desired} though no cgroup above is "
        "narrower; look for a cpuset partition or a memory node gone offline"
    )


def _why_gone(
    offline: Mask, withheld: Sequence[WithheldCpus], desired: Mask, effective: Mask
) -> str:
    found, remedies = list(map(str, withheld)), [each.remedy for each in withheld]
    if offline:
        found.append(f"{'all' if offline == desired else offline} of {desired} is offline")
        remedies.append("bring the CPUs online")
    instead = "" if effective <= desired else f", so the kernel uses the parent's {effective}"
    return f"{' and '.join(found)}{instead}; {', '.join(remedies)} or remove the pod"


def _too_narrow(tree: CgroupTree, path: str, file: str, desired: Mask) -> tuple[str, Mask] | None:
    """Return the topmost ancestor that is too narrow, None for the root, which has no setting."""
    effective = EFFECTIVE[file]
    found: tuple[str, Mask] | None = None
    for above in ancestors(path):
        text, word = tree.read_many(above, (effective, PARTITION))
        if is_partition(word):
            found = None  # what it has was taken from those above
        has = EMPTY if text is None else Mask.parse(text)
        if found is None and text is not None and not desired <= has:
            found = above, has
    return found if found is not None and found[0] else None


def _named(difference: Difference, known: WriterRecords) -> Difference:
    """Return a difference with the likely writer as its cause."""
    if _has(known.runtime, difference):
        cause, who = Cause.RUNTIME_UPDATE, "the container runtime has on record for the container"
    elif _has(known.systemd, difference):
        cause, who = Cause.REVERTED_BY_SYSTEMD, "systemd has on record for the unit"
    else:
        return difference
    return replace(difference, cause=cause, detail=f"{difference.detail}: that is what {who}")


def _has(record: WriterRecord | None, difference: Difference) -> bool:
    if record is None or difference.observed is None:
        return False
    return record.has(difference.file, difference.observed)


def by_the_kubelet(difference: Difference, role: Role, systemd: WriterRecord | None) -> Difference:
    """Return a difference with the kubelet as its cause where it is the kubelet's normal work.

    It makes the cgroup of a pod with a quota and writes that again at a resize, and has the runtime
    write those of containers. Where it writes through systemd, the record of `systemd` is then no
    longer as desired; it need not be what the file shows, since systemd rounds quotas up.
    """
    runtime = difference.cause is Cause.RUNTIME_UPDATE
    kept = systemd is not None and systemd.has(difference.file, difference.desired)
    of_pod = role is Role.POD and not kept
    if difference.file != CPU_MAX or difference.observed is None or not (runtime or of_pod):
        return difference
    detail, _, _ = difference.detail.partition(": ")
    detail = f"{detail}: the kubelet gives its pods and containers quotas"
    return replace(difference, cause=Cause.KUBELET, detail=detail)


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def without_the_kubelets(
    desired: Iterable[DesiredCgroup],
    allocations: Mapping[str, PodAllocation],
    pods: Mapping[str, LocatedPod],
    known: KnownChanges | None = None,
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired without what the kubelet decides.

    `pods` are the located pods by uid, `known` is what was made before. The cgroup of all pods is
    left out, and so are pods whose cgroup the kubelet has not made yet or has removed already.

    The kubelet with its own managers off writes no cpuset of a pod or container. It writes weights
    and memory limits, the quotas of pods, and, at its start, all CPUs into the cgroup of all pods;
    the container runtime writes the quotas of containers (tried with kubelet v1.36.2). So the agent
    writes sets everywhere but there. Quotas are the agent's in pods with exclusive CPUs, which
    KEP-5526 frees from throttling ("Interaction with CPU Quota Management"), and the kubelet's in
    all others.
    """
    known = known or KnownChanges()
    known.keep(allocations)
    found: list[DesiredCgroup] = []
    for uid, items in groupby(desired, BY_POD):
        pod = allocations.get(uid)
        if pod is None:
            above = tuple(item for item in items if item.role is not Role.ALL_PODS)
            found += _ours(above, None)
        elif pods[uid].exists:
            found += known.of(uid, (tuple(items), pod), _ours)
    return tuple(found)


def _ours(items: tuple[DesiredCgroup, ...], pod: PodAllocation | None) -> tuple[DesiredCgroup, ...]:
    found = []
    for item in items:
        quota = item.setting.values.get(CPU_MAX) if pod is not None and pod.exclusive_cpus else None
        values = _NOTHING if quota is None else {CPU_MAX: quota}
        found.append(replace(item, setting=replace(item.setting, values=values, defaults=_NOTHING)))
    return tuple(found)
