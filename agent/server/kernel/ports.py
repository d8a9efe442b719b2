"""What the service needs of the parts that touch the system; all of it blocks.

Everything here is called from the one worker thread, in order.
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
    from agent.reconcile.report import Difference
    from agent.state.checkpoint import Checkpoint
    from sysfs.mask import Mask


def _nothing() -> Mapping[str, int]:
    return MappingProxyType({})


class ReconcileResult(Struct, frozen=True):
    """What came of enforcing or comparing.

    `drift` are the settings that somebody undid, `found` and `repaired` count them, and those of
    them that were put right, by cause. `unenforced` says, by pod uid, what the kernel does not
    enforce; `problems` is what concerns no single pod; `notes` are facts worth knowing that are no
    failure. One line each. `cgroups` are all that were looked at, `pods` the uids of the pods these
    are of (None: everything was looked at; else all others were enforced before), `running` the
    containers (uid, name) that have one, `settled` those cgroups that were new. `renewed` are
    cgroups whose files, and those of all below, may be others than before. `contested` are the
    cgroups that wait for their repair, `given_way` says of each whose waiting has just begun why
    and for how long. `ended` are cgroups that were bound, have no container any more, and of which
    nothing has to be remembered. `orphaned` are the uids of pods that are not in the ledger and
    whose cgroups stay, None where that was not looked at. `compared`: the tree could be read; else
    `problems` says why not.
    """

    drift: tuple[Difference, ...] = ()
    found: Mapping[str, int] = field(default_factory=_nothing)
    repaired: Mapping[str, int] = field(default_factory=_nothing)
    unenforced: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    problems: tuple[str, ...] = ()
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


class Enforcement(Protocol):
    """The cgroup tree, with systemd where it manages it."""

    def admitted(self, target: Desired, uid: str) -> ReconcileResult:
        """Make the kernel enforce a ledger to which a pod was added."""

    def removed(self, target: Desired, allocation: PodAllocation) -> ReconcileResult:
        """Release a pod that is no longer in the ledger, and give others what it held."""

    def reconcile(self, target: Desired, *, insist: bool = False) -> ReconcileResult:
        """Compare the kernel with the ledger and put right what differs.

        What somebody else rewrites again and again waits for its time, unless asked to `insist`.
        """

    def verify(self, target: Desired, online: Mask) -> VerificationDocument:
        """Compare the kernel with the ledger and look for foreign tasks; nothing is written."""

    def observe(
        self, target: Desired, allocation: PodAllocation
    ) -> Mapping[str | None, tuple[KernelDocument, ...]]:
        """Return what the kernel says of a pod's cgroups, by container (None: the pod's own)."""

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""


class Saver(Protocol):
    """The checkpoint."""

    def save(self, state: Checkpoint) -> int:
        """Make a state the one that a restart finds; raises `CheckpointIOError`."""

    def check(self) -> None:
        """Raise `CheckpointIOError` when a save would go where somebody else saves."""
