"""The documents of pods, with what the agent knows of each beside its allocation."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.api.views import pod_document
from agent.managers.assessment.verdict import verdict
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.api.documents import ExplanationDocument, KernelDocument, PodDocument
    from agent.devices.cdi_files import CdiFiles
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.assessment.violation import Violation
    from agent.managers.device.kubelet_listing import KubeletListing
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import GivenDevices
    from agent.server.reporting.records import PodRecord
    from agent.server.state import AgentState
    from sysfs.mask import Mask


class PodDescriber(Struct, frozen=True):
    """Makes documents of pods under one policy; `pool` has the CPUs of the node's shared pool."""

    rules: EffectivePolicy
    pool: Mask
    cdi_files: CdiFiles
    kubelet: KubeletListing

    @classmethod
    def of(cls, state: AgentState, pool: Mask | None = None) -> PodDescriber:
        """Return the describer of a state as of now, with another pool if one is given."""
        return cls(
            state.configured.rules,
            state.shared_cpus if pool is None else pool,
            state.cdi_files,
            state.kubelet_listing,
        )

    def document(
        self,
        allocation: PodAllocation,
        record: PodRecord | None,
        *,
        explanation: ExplanationDocument | None = None,
        kernel: Mapping[str | None, tuple[KernelDocument, ...]] | None = None,
        invalid: Iterable[Violation] = (),
    ) -> PodDocument:
        """Return the document of a pod; without a `record` the kernel was not observed."""
        return pod_document(
            allocation,
            self.pool,
            record=record,
            explanation=explanation,
            kernel=kernel,
            invalid=invalid,
            judgements=verdict(self.rules, allocation),
            cdi_names=self.cdi_files.names(allocation),
            kubelet=self.kubelet,
        )


def given_by_kubelet(state: AgentState) -> dict[str, GivenDevices]:
    """Return the devices that the kubelet beside the agent gave, by `namespace/name` of the pod.

    Those with which a pod was decided go before those that are listed now.
    """
    listing = state.kubelet_listing
    found = {"/".join(name): given for name, given in listing.pods.items()}
    for allocation in state.ledger.allocations.values():
        found[full_name(allocation)] = listing.of(allocation)
    for rejected in state.records.rejections.values():
        if rejected.pod is not None and rejected.pod.given_devices:
            found[full_name(rejected.pod)] = rejected.pod.given_devices
    return {name: given for name, given in found.items() if given}


def pods_now(state: AgentState) -> Callable[[], tuple[PodDocument, ...]]:
    """Return a function that makes the documents of all pods as of now, in any thread.

    They are in the order of admission.
    """
    describer = PodDescriber.of(state)
    invalid: dict[str, list[Violation]] = defaultdict(list)
    for violation in state.invalid:
        invalid[violation.uid].append(violation)
    known = [
        (allocation, replace(state.records.of(uid)), invalid.get(uid, ()))
        for uid, allocation in state.ledger.allocations.items()
    ]
    return lambda: tuple(
        describer.document(allocation, record, invalid=violated)
        for allocation, record, violated in known
    )
