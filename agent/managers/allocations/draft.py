"""The draft of an admission: what has been allocated to the pod so far.

A draft is the one mutable value of the decision core. It lives inside a single call of `admit`,
starts from an immutable ledger and ends as an allocation and a new ledger, or is dropped, so that
a rejected pod changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.managers.topology.search_budget import SearchBudget
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import PodDemand
    from agent.managers.allocations.ledger import Ledger, MemoryBlock, NodeMemory
    from agent.managers.decision import CounterKey, HintTrace
    from agent.managers.effective_policy import EffectivePolicy


class Draft(Struct):
    """The free resources for the pod under admission, and the allocations of its containers.

    `reusable_cpus` are allocated to standard init containers of this pod and may be allocated to a
    later container of the pod. `cpus`, `memory` and `devices` are by container name.
    """

    rules: EffectivePolicy
    ledger: Ledger
    demand: PodDemand
    free_cpus: Mask
    node_memory: Mapping[int, NodeMemory]
    reusable_cpus: Mask = EMPTY
    reusable_memory: dict[tuple[int, str], int] = field(default_factory=dict)
    cpus: dict[str, Mask] = field(default_factory=dict)
    memory: dict[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)
    devices: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    reusable_devices: dict[str, frozenset[str]] = field(default_factory=dict)
    hints: dict[str, Hint] = field(default_factory=dict)
    pod_cpus: Mask | None = None
    pod_memory: tuple[MemoryBlock, ...] = ()
    counters: dict[CounterKey, int] = field(default_factory=dict)
    traces: list[HintTrace] = field(default_factory=list)
    works: list[SearchBudget] = field(default_factory=list)

    @classmethod
    def start(cls, rules: EffectivePolicy, ledger: Ledger, demand: PodDemand) -> Draft:
        """Return the draft of a pod without any allocation yet."""
        return cls(
            rules=rules,
            ledger=ledger,
            demand=demand,
            free_cpus=rules.assignable_cpus - ledger.exclusive_cpus,
            node_memory=ledger.memory,
        )

    def work(self) -> SearchBudget:
        """Return the work budget of one choice among sets of nodes."""
        self.works.append(SearchBudget())
        return self.works[-1]

    def hint(self, container: str) -> Hint:
        """Return the alignment decided for a container."""
        return self.hints.get(container, NO_AFFINITY)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter of this admission."""
        key = (name, labels)
        self.counters[key] = self.counters.get(key, 0) + by
