"""Interfaces of the parts that access the system; all calls block.

The one worker thread makes all calls, in order.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.api.documents import BindRequest, KernelDocument
    from agent.api.verification import VerificationDocument
    from agent.managers.allocations.bindings import Binding
    from agent.managers.allocations.ledger import PodAllocation
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.diff import Difference
    from agent.reconcile.report import PlannedChange
    from agent.state.checkpoint import Checkpoint
    from sysfs.mask import Mask


def _nothing() -> Mapping[str, int]:
    return MappingProxyType({})


class ReconcileResult(Struct, frozen=True):
    """The result of a change or a comparison.

    `drift` are the settings that another process changed; `found` counts them by cause, `repaired`
    those that were repaired. `remaining` is what is not enforced, of pods and outside of single
    pods; `notes` are facts that are not failures, one line each. `cgroups` are the observed cgroups
    and `pods` the uids of their pods (None: the whole tree was observed). `running` are the
    containers (uid, name) with a populated cgroup, `settled` the cgroups that were new. `renewed`
    are cgroups whose files, and those of all descendants, may have been created again. `contested`
    are the cgroups whose repair is delayed, `given_way` has the reason and the delay of each delay
    that has just begun. `ended` are bound cgroups without processes whose bindings can be dropped.
    `orphaned` are the uids of pods that are not in the ledger and whose cgroups still exist, None
    if these were not observed. `compared` is False if the tree could not be read; `remaining` has
    the reason.
    """

    drift: tuple[Difference, ...] = ()
    found: Mapping[str, int] = field(default_factory=_nothing)
    repaired: Mapping[str, int] = field(default_factory=_nothing)
    remaining: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    pods: frozenset[str] | None = None
    running: tuple[tuple[str, str], ...] = ()
    settled: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()
    given_way: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    orphaned: frozenset[str] | None = None
    compared: bool = True

    def of_pod(self, uid: str) -> tuple[Difference, ...]:
        """Return what is not enforced of a pod ("": outside of single pods)."""
        return tuple(each for each in self.remaining if each.pod == uid)

    def unenforced(self) -> Mapping[str, tuple[Difference, ...]]:
        """Return what is not enforced of pods, by uid."""
        uids = dict.fromkeys(each.pod for each in self.remaining if each.pod)
        return {uid: self.of_pod(uid) for uid in uids}


class Enforcement(Protocol):
    """The cgroup tree, with systemd where it manages it."""

    def admitted(self, target: Desired, uid: str) -> ReconcileResult:
        """Make the kernel enforce a ledger to which a pod was added."""

    def plan(self, target: Desired, uid: str) -> PlannedChange:
        """Return what `admitted` would create and write, without writing."""

    def removed(self, target: Desired, allocation: PodAllocation) -> ReconcileResult:
        """Release a pod that is no longer in the ledger and apply the changes for other pods."""

    def reconcile(self, target: Desired, *, insist: bool = False) -> ReconcileResult:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups that another writer keeps modifying are skipped during their backoff, unless
        `insist` is set.
        """

    def verify(self, target: Desired, online: Mask) -> VerificationDocument:
        """Compare the kernel with the ledger and look for intruding tasks, without writing."""

    def observe(
        self, target: Desired, allocation: PodAllocation
    ) -> Mapping[str | None, tuple[KernelDocument, ...]]:
        """Return the settings of a pod's cgroups by container (None: the pod's own cgroup)."""

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""


class Saver(Protocol):
    """The checkpoint."""

    def save(self, state: Checkpoint) -> int:
        """Save the state that a restart restores; raises `CheckpointIOError`."""

    def check(self) -> None:
        """Raise `CheckpointIOError` if the state directory was replaced."""
