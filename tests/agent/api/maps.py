"""Random hosts with random allocations, for tests of maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from agent.managers.allocation import ContainerAllocation, Isolation, MemoryBlock, PodAllocation
from agent.managers.machine import Machine
from agent.pods.model import ContainerKind, QosClass
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.sysfs.hosts import hosts

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from sysfs.host import Host


class Occupied(NamedTuple):
    """A host, its rules, and a ledger that need not be one that decisions would make."""

    host: Host
    rules: EffectivePolicy
    ledger: Ledger


@st.composite
def occupied_hosts(draw: st.DrawFn) -> Occupied:
    """Draw a host with up to four pods; a CPU may be allocated twice, offline or reserved."""
    host = draw(hosts())
    reserved = draw(st.sets(st.sampled_from(list(host.online)), max_size=3))
    rules = make_rules(
        Machine.of(host), reserved=str(Mask.from_ids(reserved)), memory=draw(st.booleans())
    )
    pods = [draw(_pods(host, number)) for number in range(draw(st.integers(0, 4)))]
    return Occupied(host, rules, ledger_with(*pods))


@st.composite
def _pods(draw: st.DrawFn, host: Host, number: int) -> PodAllocation:
    ids = st.sets(st.sampled_from([cpu.id for cpu in host.cpus]), max_size=6).map(Mask.from_ids)
    nodes = st.sets(st.sampled_from([node.id for node in host.nodes]), max_size=2)
    containers = []
    for place in range(draw(st.integers(1, 3))):
        isolation = draw(st.sampled_from(list(Isolation)))
        mems = Mask.from_ids(draw(nodes))
        containers.append(
            ContainerAllocation(
                name=f"c{place}",
                kind=draw(st.sampled_from(list(ContainerKind))),
                isolation=isolation,
                cpus=None if isolation is Isolation.HOST else draw(ids),
                memory=(MemoryBlock("memory", 1 << 20, mems),) if mems else (),
            )
        )
    return PodAllocation(
        uid=f"uid-{number}",
        name=f"pod-{number}",
        namespace="shop",
        qos=QosClass.GUARANTEED,
        spec_digest="x",
        containers=tuple(containers),
        cpus=draw(st.one_of(st.none(), ids)),
    )
