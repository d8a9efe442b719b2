"""The results of enforcing or comparing, by cgroup, and the errors of starting and binding."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.reconcile.desired import ABOVE_PODS, Role
from cgroupfs.apply import WriteResult
from cgroupfs.settings import EFFECTIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.reconcile.desired import DesiredCgroup
    from agent.reconcile.diff import Difference
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.plan import Write, WriteStage
    from cgroupfs.state import CgroupState


class EnforcementError(Exception):
    """Base of this package's errors."""


class EnforcementStartError(EnforcementError):
    """The cgroup tree or systemd cannot be used; one line: what, found, remedy."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(f"{what}: {found}; {remedy}")


class BindingError(EnforcementError):
    """A container cannot be bound to the cgroup or process that was named."""

    def __init__(self, asked: str, found: str, remedy: str) -> None:
        super().__init__(f"cannot bind {asked}: {found}; {remedy}")


class WriteRecord(Struct, frozen=True):
    """One write that was made, and whether the kernel shows what was written."""

    cgroup: str
    file: str
    value: str
    stage: WriteStage
    ok: bool


class PlannedChange(Struct, frozen=True):
    """What a change would do: the cgroups it creates, and its writes in their order."""

    created: tuple[str, ...] = ()
    writes: tuple[Write, ...] = ()


class CgroupReport(Struct, frozen=True):
    """What is desired of one cgroup, what the kernel shows (None: gone), and how they differ."""

    desired: DesiredCgroup
    state: CgroupState | None
    differences: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the kernel enforces everything that is desired."""
        return not self.differences


class CgroupReports(tuple[CgroupReport, ...]):  # noqa: SLOT001  # what is derived is kept
    """The reports of the observed cgroups, and what follows from them.

    Comparisons that find the same return the same object (`Enforcer`), so that this is found once.
    """

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """How they differ, all in turn."""
        return tuple([difference for each in self for difference in each.differences])

    @cached_property
    def paths(self) -> frozenset[str]:
        """The observed cgroups of pods and in pods."""
        return frozenset(
            each.desired.setting.cgroup for each in self if each.desired.role not in ABOVE_PODS
        )

    @cached_property
    def by_pod(self) -> Mapping[str, frozenset[str]]:
        """The observed cgroups by the uid of their pod, "" for those of no pod."""
        found: dict[str, list[str]] = {}
        for each in self:
            found.setdefault(each.desired.pod, []).append(each.desired.setting.cgroup)
        return MappingProxyType({uid: frozenset(paths) for uid, paths in found.items()})

    @cached_property
    def orphaned(self) -> tuple[str, ...]:
        """The cgroups without a pod in the ledger: of pods, in these, and of former bindings."""
        return tuple(
            each.desired.setting.cgroup for each in self if each.desired.role is Role.ORPHANED
        )

    @cached_property
    def running(self) -> Mapping[str, Sequence[str]]:
        """The names of the containers with a populated cgroup, by the uid of their pod."""
        found: dict[str, list[str]] = {}
        for each in self._populated():
            if each.container:
                found.setdefault(each.pod, []).append(each.container)
        return MappingProxyType(found)

    @cached_property
    def alike(self) -> Mapping[str, int]:
        """The number of populated cgroups that are any of a pod's containers, by its uid."""
        return Counter(each.pod for each in self._populated() if each.container is None)

    def _populated(self) -> Iterator[DesiredCgroup]:
        for each in self:
            if each.desired.role is Role.CONTAINER and each.state and each.state.populated:
                yield each.desired


class EnforcementReport(Struct, frozen=True, dict=True):
    """The result of a change or a comparison: everything that was found, written and left."""

    #: The cgroups at the end.
    cgroups: CgroupReports = CgroupReports()
    #: What differed before the first write, but for cgroups that still showed their former setting.
    found: tuple[Difference, ...] = ()
    #: The part of `found` that another process changed: nothing of new pods and containers, nor
    #: what was beyond repair last time.
    drift: tuple[Difference, ...] = ()
    #: What differs too and was not written for now (`agent.reconcile.backoff`).
    postponed: tuple[Difference, ...] = ()
    #: What remains and concerns no single setting: a controller, systemd.
    differences: tuple[Difference, ...] = ()
    #: What differs as partitions alone: the sets are enforced, so these do not remain.
    unpartitioned: tuple[Difference, ...] = ()
    #: In their order.
    writes: tuple[WriteRecord, ...] = ()
    #: The cgroups that were created.
    created: tuple[str, ...] = ()
    #: The cgroups whose `cgroup.subtree_control` was written.
    enabled: tuple[str, ...] = ()
    #: The units whose properties were set in systemd.
    recorded: tuple[str, ...] = ()
    #: Facts worth knowing that are no failures: unidentified cgroups, those of removed pods.
    notes: tuple[str, ...] = ()
    #: The uids of the pods that were observed, None when all were.
    pods: frozenset[str] | None = None
    #: Whether the tree could be read; where it could not, `remaining` has the reason.
    compared: bool = True

    # What depends on former observations is set by the controller's side (`agent.server.kernel`).

    #: What another process made again soon after repairs, one for each file that it writes.
    contested: tuple[Difference, ...] = ()
    #: What is done about contested files, a line for each that is news.
    given_way: tuple[str, ...] = ()
    #: Bound cgroups without processes: their bindings can be dropped.
    ended: frozenset[str] = frozenset()
    #: The uids of pods that are not in the ledger and whose cgroups still exist, None if these were
    #: not observed.
    orphaned: frozenset[str] | None = None

    @cached_property
    def remaining(self) -> tuple[Difference, ...]:
        """Every difference that remains, of pods and outside of single pods."""
        return (*self.differences, *self.cgroups.differences)

    @property
    def first_set(self) -> tuple[str, ...]:
        """The cgroups that had no set until now: another process created them."""
        ours = {*self.created, *(one.cgroup for one in self.drift)}
        unset = {one.cgroup for one in self.found if one.file in EFFECTIVE and not one.observed}
        written = {write.cgroup for write in self.writes if write.file in EFFECTIVE and write.ok}
        return tuple(sorted(unset & written - ours))

    @property
    def ok(self) -> bool:
        """Whether everything is enforced."""
        return not self.remaining

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.writes or self.created or self.enabled or self.recorded)

    @property
    def repaired_drift(self) -> tuple[Difference, ...]:
        """The differences among the drift that were repaired."""
        left = {(p.cgroup, p.file) for p in (*self.remaining, *self.unpartitioned)}
        return tuple(p for p in self.drift if (p.cgroup, p.file) not in left)

    @property
    def repaired(self) -> Mapping[str, int]:
        """The number of repaired differences among the drift, by cause."""
        return count_causes(self.repaired_drift)

    @property
    def renewed(self) -> tuple[str, ...]:
        """The cgroups whose files, and those of all descendants, may have been created again."""
        return tuple(
            dict.fromkeys((*self.created, *self.enabled, *(each.cgroup for each in self.found)))
        )

    def cgroups_of(self, uid: str) -> tuple[CgroupReport, ...]:
        """Return the cgroups of one pod, its own first."""
        return tuple(cgroup for cgroup in self.cgroups if cgroup.desired.pod == uid)

    def of_pod(self, uid: str) -> tuple[Difference, ...]:
        """Return what is not enforced of a pod ("": outside of single pods)."""
        return tuple(each for each in self.remaining if each.pod == uid)

    def unenforced(self) -> Mapping[str, tuple[Difference, ...]]:
        """Return what is not enforced of pods, by uid."""
        uids = dict.fromkeys(each.pod for each in self.remaining if each.pod)
        return {uid: self.of_pod(uid) for uid in uids}


def count_causes(differences: Iterable[Difference]) -> Mapping[str, int]:
    """Return the number of differences by cause."""
    return MappingProxyType(dict(Counter(str(difference.cause) for difference in differences)))


def write_record(outcome: WriteOutcome) -> WriteRecord:
    """Return an applied write as a record."""
    write = outcome.write
    ok = outcome.result is WriteResult.OK
    return WriteRecord(write.cgroup, write.file, write.value, write.stage, ok)


class ReleaseReport(Struct, frozen=True):
    """The result of releasing a pod's cgroup.

    `removed` is True when the cgroup is gone. Otherwise it stays: `processes` are the ids of those
    that still live in it (the next enforcement confines them to the node's shared pool), `reason`
    says in one line why and what to do.
    """

    cgroup: str
    removed: bool
    processes: tuple[int, ...] = ()
    reason: str = ""
