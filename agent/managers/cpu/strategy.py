"""How CPUs are chosen under the policy options (kubelet `staticPolicy.takeByTopology`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions


class Strategy(Struct, frozen=True):
    """How CPUs are chosen.

    `group_size` None packs onto few NUMA nodes; a number distributes evenly over the nodes that
    are needed, in groups of that many CPUs. `spread` takes single CPUs across cores, `uncore`
    prefers whole uncore caches (packing only), `whole_cores` asks for whole physical cores.
    """

    group_size: int | None = None
    spread: bool = False
    uncore: bool = False
    whole_cores: bool = False

    @property
    def by_cache(self) -> bool:
        """Whether uncore caches affect the choice."""
        return self.uncore and self.group_size is None


def strategy_of(topology: CpuTopology, options: CpuPolicyOptions) -> Strategy:
    """Return how CPUs are chosen under the policy options."""
    group_size = None
    if options.distribute_cpus_across_numa:
        group_size = topology.cpus_per_core if options.full_pcpus_only else 1
    return Strategy(
        group_size=group_size,
        spread=options.distribute_cpus_across_cores,
        uncore=options.prefer_align_cpus_by_uncorecache,
        whole_cores=options.full_pcpus_only,
    )
