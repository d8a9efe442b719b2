"""Rules of small machines for tests of whole admissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.managers.machine import Machine
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    IsolationMode,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    PluginDevice,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.managers.versions import NEWEST, KubernetesVersion
from sysfs.described import regular_host
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB: Final = 1 << 30
CONTAINER: Final = TopologyManagerScope.CONTAINER
POD: Final = TopologyManagerScope.POD
BEST_EFFORT: Final = TopologyManagerPolicy.BEST_EFFORT
NO_POLICY: Final = TopologyManagerPolicy.NONE
RESTRICTED: Final = TopologyManagerPolicy.RESTRICTED
SINGLE: Final = TopologyManagerPolicy.SINGLE_NUMA_NODE

#: Two packages of one node each, eight cores without siblings per node, 16 GiB per node.
PLAIN: Final = Machine.of(regular_host(cores_per_node=8, threads=1))
#: The same with four cores of two threads per node: siblings are n and n + 8.
SMT: Final = Machine.of(regular_host(cores_per_node=4, threads=2))


def make_rules(  # noqa: PLR0913  # a policy has that many sides, each named at the call
    machine: Machine = PLAIN,
    topology: TopologyManagerPolicy = RESTRICTED,
    scope: TopologyManagerScope = POD,
    *,
    reserved: str = "0",
    memory: bool = True,
    managed: bool = True,
    devices: Mapping[str, tuple[PluginDevice, ...]] | None = None,
    gates: Mapping[str, bool] | None = None,
    fit: NodeFit | None = None,
    version: KubernetesVersion = NEWEST,
    smt: IsolationMode = IsolationMode.NEVER,
    **options: bool,
) -> EffectivePolicy:
    """Return static CPU (and memory) policies with one reserved CPU and 1 GiB per node reserved.

    Without `fit` what pods request is not compared with what the node has.
    """
    chosen: dict[str, Any] = {"pod_level_resource_managers": managed, **(gates or {})}
    kept = {node.id: {"memory": GIB} for node in machine.nodes if node.known_memory > GIB}
    return EffectivePolicy(
        machine,
        Policy(
            cpu=CpuPolicy(
                CpuManagerPolicy.STATIC, CpuPolicyOptions(**options), Mask.parse(reserved), smt
            ),
            memory=MemoryPolicy(MemoryManagerPolicy.STATIC, kept) if memory else MemoryPolicy(),
            topology=TopologyPolicy(topology, scope),
            gates=FeatureGates(**chosen),
            version=version,
            devices=devices or {},
            fit=fit,
        ),
        MANAGERS,
    )
