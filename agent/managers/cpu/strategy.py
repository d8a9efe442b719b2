"""The strategy of a choice of CPUs: the policy options, as far as they affect it.

In go the policy options, the Kubernetes version and the host's topology. Out comes a `Strategy`,
which every step of the choice reads (`take`). It never changes during a choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.versions import KubernetesVersion


class Strategy(Struct, frozen=True):
    """How CPUs are chosen."""

    #: `distribute-cpus-across-numa`: the CPUs of one group; each NUMA node gives whole groups.
    #: None: the option is off, and CPUs are packed.
    group_size: int | None = None
    #: With `group_size`: the number of NUMA nodes to try first; 0: the fewest that can serve.
    node_count: int = 0

    #: `distribute-cpus-across-cores`: take single CPUs across cores.
    spread: bool = False
    #: With `spread`: take one CPU of each core in turn, instead of CPUs in ascending order.
    core_by_core: bool = False

    #: `full-pcpus-only`: prefer whole physical cores.
    whole_cores: bool = False
    #: `prefer-align-cpus-by-uncorecache`.
    uncore: bool = False

    @classmethod
    def of(
        cls, topology: CpuTopology, options: CpuPolicyOptions, version: KubernetesVersion
    ) -> Self:
        """Return the strategy of the policy options under a Kubernetes version."""
        group_size = None
        if options.distribute_cpus_across_numa:
            group_size = topology.cpus_per_core if options.full_pcpus_only else 1
        return cls(
            group_size=group_size,
            spread=options.distribute_cpus_across_cores,
            core_by_core=version.rules.spreading_goes_core_by_core,
            whole_cores=options.full_pcpus_only,
            uncore=options.prefer_align_cpus_by_uncorecache,
        )

    @property
    def by_cache(self) -> bool:
        """Whether uncore caches affect the choice: only if CPUs are not distributed (kubelet)."""
        return self.uncore and self.group_size is None
