"""Interfaces of the parts that access the system; all calls block.

The one worker thread makes all calls, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.api.documents import BindRequest, KernelDocument
    from agent.api.verification import VerificationDocument
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.bindings import Binding
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.report import EnforcementReport, PlannedChange
    from agent.server.endings import Lives
    from agent.state.checkpoint import Checkpoint
    from sysfs.mask import Mask


class Enforcement(Protocol):
    """The cgroup tree, with systemd where it manages it."""

    def admitted(self, target: Desired, *uids: str) -> EnforcementReport:
        """Make the kernel enforce a ledger to which pods were added."""

    def plan(self, target: Desired, uid: str) -> PlannedChange:
        """Return what `admitted` would create and write, without writing."""

    def removed(self, target: Desired, allocation: PodAllocation) -> EnforcementReport:
        """Release a pod that is no longer in the ledger and apply the changes for other pods."""

    def changed(self, target: Desired) -> EnforcementReport:
        """Make the kernel enforce another shared pool."""

    def reconcile(self, target: Desired, *, insist: bool = False) -> EnforcementReport:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups that another writer keeps modifying are skipped during their backoff, unless
        `insist` is set.
        """

    def verify(self, target: Desired, online: Mask) -> VerificationDocument:
        """Compare the kernel with the ledger and look for intruding tasks, without writing."""

    def count_intruders(
        self, target: Desired, outcome: EnforcementReport, online: Mask
    ) -> Mapping[str, int] | None:
        """Return the threads that intrude by `IntruderKind`, None if it is too early to count.

        `outcome` is that of `reconcile`.
        """

    def observe(
        self, target: Desired, allocation: PodAllocation
    ) -> Mapping[str | None, tuple[KernelDocument, ...]]:
        """Return the settings of a pod's cgroups by container (None: the pod's own cgroup)."""

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""

    def lives(self, target: Desired, allocations: Iterable[PodAllocation]) -> Lives:
        """Return which of some pods have processes, and the states of their units."""


class Saver(Protocol):
    """The checkpoint."""

    def save(self, state: Checkpoint) -> int:
        """Save the state that a restart restores; raises `CheckpointIOError`."""

    def check(self) -> None:
        """Raise `CheckpointIOError` if the state directory was replaced."""

    def free(self) -> int:
        """Return how many bytes there are for checkpoints; raises `CheckpointIOError`."""
