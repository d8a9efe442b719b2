"""Everything the running agent knows. Only the controller changes it; everybody may read it."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent import __version__
from agent.managers.allocations.bindings import NO_BINDINGS, Bindings
from agent.managers.effective_policy import shared_cpus, shared_pool
from agent.managers.recovery.from_cgroups import describe_recovered, is_recovered
from agent.managers.validity import invalid_allocations
from agent.reconcile.desired.online import usable
from agent.reconcile.desired.state import Desired
from agent.server.metrics.gauges import GaugeInput
from agent.server.reporting.records import PodRecords
from agent.sources.manifests import ADMITTED, CONFLICT, INVALID, REJECTED
from agent.state.checkpoint import Checkpoint, host_facts, policy_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.api.documents import DriftDocument, ManifestDocument, ReconcileDocument
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.recovery.beside_checkpoint import Displaced
    from agent.managers.validity import Violation
    from agent.server.configured_host import ConfiguredHost
    from sysfs.host import Host
    from sysfs.mask import Mask

MANIFEST_STATES: Final = (ADMITTED, CONFLICT, INVALID, REJECTED)
#: What of the start the first comparison is (`AgentState.pending`).
COMPARISON: Final = "comparison"


class DurableState(Struct, frozen=True):
    """What outlives the process: allocations, explicit bindings, and each pod's manifest by uid.

    `orphaned` are the uids of pods that are not in the ledger and whose cgroups may be there.
    """

    ledger: Ledger
    bindings: Bindings = NO_BINDINGS
    manifests: Mapping[str, str] = MappingProxyType({})
    orphaned: frozenset[str] = frozenset()

    def without_pod(self, ledger: Ledger, uid: str) -> DurableState:
        """Return what is held once a pod is removed and `ledger` is left.

        Its bindings stay until what they name has ended: that has to be confined meanwhile.
        """
        manifests = {pod: file for pod, file in self.manifests.items() if pod != uid}
        orphaned = self.orphaned | {uid}
        return DurableState(ledger, self.bindings, MappingProxyType(manifests), orphaned)

    def with_manifest(self, ledger: Ledger, uid: str, manifest: str | None) -> DurableState:
        """Return what is held with `ledger`, the pod of `uid` coming from `manifest`."""
        names = {container.name for container in ledger.allocations[uid].containers}
        admitted = replace(
            self,
            ledger=ledger,
            bindings=self.bindings.of_containers(uid, names),
            orphaned=self.orphaned - {uid},
        )
        if manifest is None:
            return admitted
        manifests = MappingProxyType({**self.manifests, uid: manifest})
        return replace(admitted, manifests=manifests)


class AgentState(Struct):
    """The state of the running agent.

    `held` is what the checkpoint holds. `releases` counts what may have made room for a pod that
    was rejected. `manifests` are the files of the manifest directory by path, `last_reconcile` the
    latest comparison and `last_agreement` when one last ended well (Unix time). `ready`: changes
    are taken; `pending` says, by subject, what of the start has not been done yet. `unsaved` says
    why the checkpoint could not be saved or may not be durable, `kernel_problems` what the kernel
    or systemd rejects beyond single pods, `contested` the cgroups that others rewrite again and
    again and that wait for their repair, `drift` the latest settings that somebody undid,
    `displaced` the allocations of the checkpoint that gave way to what runs, by uid, until their
    pods are admitted or removed, `troubles` what else is wrong, by subject.
    """

    situation: ConfiguredHost
    held: DurableState
    boot_id: str = ""
    started: float = 0.0
    ready: bool = False
    pending: dict[str, str] = field(default_factory=dict)
    records: PodRecords = field(default_factory=PodRecords)
    manifests: Mapping[str, ManifestDocument] = MappingProxyType({})
    last_reconcile: ReconcileDocument | None = None
    last_agreement: float | None = None
    releases: int = 0
    unsaved: str | None = None
    kernel_problems: tuple[str, ...] = ()
    contested: tuple[str, ...] = ()
    drift: tuple[DriftDocument, ...] = ()
    displaced: dict[str, Displaced] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    _judged: tuple[EffectivePolicy, Ledger, tuple[Violation, ...]] | None = None
    _fitting: tuple[Host, Ledger] | None = None

    @property
    def invalid(self) -> tuple[Violation, ...]:
        """What is held and the rules in force would not give."""
        rules, ledger = self.situation.rules, self.ledger
        if self._judged is None or self._judged[0] is not rules or self._judged[1] is not ledger:
            found = invalid_allocations(rules, ledger, self.situation.host.offline)
            self._judged = (rules, ledger, found)
        return self._judged[2]

    @property
    def ledger(self) -> Ledger:
        """Who holds what."""
        return self.held.ledger

    @property
    def shared_pool(self) -> Mask:
        """The node's shared pool; it may be empty (`strict-cpu-reservation`)."""
        return shared_pool(self.situation.rules, self.ledger)

    @property
    def shared_cpus(self) -> Mask:
        """The CPUs of containers that hold none of their own; never empty."""
        return shared_cpus(self.situation.rules, self.ledger)

    def target(self) -> Desired:
        """Return what the kernel is to enforce now, as far as the host can."""
        host = self.situation.host
        known = self._fitting[1] if self._fitting and self._fitting[0] is host else None
        ledger = usable(self.ledger, host, known)
        if ledger is self.ledger:
            self._fitting = (host, ledger)
        return Desired(ledger, self.shared_cpus, self.held.bindings)

    def unready(self) -> str | None:
        """Say why a pod cannot be admitted now, in one line; None when one can."""
        if not self.ready:
            return "the state is being restored"
        if self.pending:
            return "; ".join(self.pending.values())
        if self.situation.frozen:
            return self.situation.problems()[0]
        return None if self.unsaved is None else f"checkpoint: {self.unsaved}"

    def problems(self) -> tuple[str, ...]:
        """Return what an operator should look at, one line each."""
        unsaved = () if self.unsaved is None else (f"checkpoint: {self.unsaved}",)
        unenforced = (
            f"pod {allocation.namespace}/{allocation.name} is not enforced: {problem}"
            for uid, allocation in self.ledger.allocations.items()
            for problem in self.records.of(uid).problems
        )
        manifests = (
            f"manifest {manifest.file} is {manifest.state}: {manifest.message}"
            for manifest in self.manifests.values()
            if manifest.state != ADMITTED
        )
        general = (*self.situation.problems(), *self.troubles.values(), *unsaved)
        invalid = (str(finding) for finding in self.invalid)
        contested = (
            f"/{cgroup} is rewritten by somebody else again and again; it is repaired now and then "
            "only, see the log, and 'numawarden verify'"
            for cgroup in self.contested
        )
        recovered = (
            f"pod uid {allocation.uid} was recovered from its cgroups with "
            f"{describe_recovered(allocation)}; "
            f"admit it to confirm that, or free it with 'numawarden remove {allocation.uid}'"
            for allocation in self.ledger.allocations.values()
            if is_recovered(allocation)
        )
        displaced = map(str, self.displaced.values())
        kernel = (*self.kernel_problems, *contested, *displaced, *recovered)
        return (*general, *kernel, *unenforced, *invalid, *manifests)

    def source_of(self, uid: str) -> str:
        """Return where a pod came from: its manifest's path, `api`, or `checkpoint`."""
        return self.held.manifests.get(uid) or self.records.of(uid).source

    def to_save(self, held: DurableState) -> Checkpoint:
        """Return what a checkpoint of these holdings contains."""
        return Checkpoint(
            ledger=held.ledger,
            bindings=held.bindings,
            boot_id=self.boot_id,
            host=host_facts(self.situation.host),
            policy=policy_summary(self.situation.rules.policy),
            agent_version=__version__,
            manifests=held.manifests,
            orphaned=held.orphaned,
        )

    def reading(self) -> GaugeInput:
        """Return what the gauges are computed from."""
        counts = dict.fromkeys(MANIFEST_STATES, 0)
        for manifest in self.manifests.values():
            counts[manifest.state] += 1
        return GaugeInput(
            version=__version__,
            host=self.situation.host,
            rules=self.situation.rules,
            ledger=self.ledger,
            shared_pool=self.shared_pool,
            started=self.started,
            unenforced_pods=self.records.unenforced,
            problems=len(self.problems()),
            contested=len(self.contested),
            manifests=MappingProxyType(counts),
            invalid=MappingProxyType(Counter(str(finding.rule) for finding in self.invalid)),
            last_reconcile=self.last_agreement,
        )
