"""States for the tests of the checkpoint: examples and a Hypothesis strategy."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.allocation import (
    ContainerAllocation,
    CpuLimits,
    Isolation,
    MemoryBlock,
    Origin,
    PodAllocation,
    Source,
)
from agent.managers.bindings import Binding, Bindings
from agent.managers.cordons import CordonEntry, Cordons
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.managers.memory.state import NodeMemory
from agent.managers.policy import Cordon
from agent.managers.topology.hint import Hint
from agent.pods.model import ContainerKind, End, Lifetime, QosClass
from agent.state.checkpoint import Checkpoint, HostFacts, NodeFacts, SharedPod
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.ledgers import ledger_with
from tests.strategies import built

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger


def ledger_of(*allocations: PodAllocation, memory: dict[int, NodeMemory] | None = None) -> Ledger:
    return ledger_with(*allocations, memory=MappingProxyType(memory or {}))


def mixed_pod(uid: str = "11111111-2222-3333-4444-555555555555") -> PodAllocation:
    """Return a pod with a budget, an exclusive and a pod-shared container, and devices."""
    nodes = Mask.of(0)
    block = MemoryBlock("memory", 4 << 30, nodes)
    return PodAllocation(
        uid=uid,
        name="mixed",
        namespace="default",
        qos=QosClass.GUARANTEED,
        spec_digest="3f1c",
        source=Source("manifests", "mixed.yaml"),
        cpus=Mask.parse("2-7"),
        memory=(block, MemoryBlock("hugepages-2Mi", 64 << 20, nodes)),
        cpu=CpuLimits(6000, 6000),
        quota_disabled=True,
        containers=(
            ContainerAllocation(
                name="db",
                kind=ContainerKind.APP,
                isolation=Isolation.CONTAINER,
                cpus=Mask.parse("2-5"),
                memory=(MemoryBlock("memory", 3 << 30, nodes),),
                devices=MappingProxyType({"example.com/nic": ("nic0", "nic1")}),
                hint=Hint(0b01, preferred=True),
                cpu=CpuLimits(4000, 4000),
                quota_disabled=True,
            ),
            ContainerAllocation(
                name="backup",
                kind=ContainerKind.SIDECAR,
                isolation=Isolation.POD,
                cpus=Mask.parse("6-7"),
                memory=(MemoryBlock("memory", 1 << 30, nodes),),
                hint=Hint(None, preferred=True),
            ),
        ),
    )


def example() -> Checkpoint:
    charge = NodeMemory(2, Mask.of(0), MappingProxyType({"memory": 4 << 30}))
    return Checkpoint(
        ledger=ledger_of(mixed_pod(), memory={0: charge}),
        bindings=Bindings(
            (Binding(mixed_pod().uid, "db", "kubepods.slice/kubepods-pod1.slice/db.scope"),)
        ),
        boot_id="5e7d2c1e-0000-4000-8000-000000000001",
        host=HostFacts(
            Mask.parse("0-15"),
            EMPTY,
            (
                NodeFacts(0, Mask.parse("0-7"), 8 << 30, MappingProxyType({2 << 20: 512})),
                NodeFacts(1, Mask.parse("8-15"), 8 << 30),
            ),
        ),
        policy=MappingProxyType({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}),
        agent_version="0.1.0",
    )


def everything() -> Checkpoint:
    """Return a state in which no field has its default."""
    (pod,) = example().ledger.allocations.values()
    first, *rest = pod.containers
    delivery = Delivery(
        environment=MappingProxyType({"VF": "0000:3b:02.1"}),
        mounts=(Mount("/opt/lib", "/usr/lib/vf", read_only=True),),
        device_nodes=(DeviceNode("/dev/vfio/12", "/dev/vfio/12", "rwm"),),
        annotations=MappingProxyType({"example.com/vf": "1"}),
        cdi_devices=("example.com/vf=1",),
        pci_addresses=("0000:3b:02.1",),
    )
    first = replace(
        first,
        limits=MappingProxyType({"memory": 3 << 30}),
        why="its CPU request 4 is a whole number",
        others=MappingProxyType({"lanes": ["0.0"]}),
        delivery=delivery,
        device_nodes=MappingProxyType({"example.com/nic": MappingProxyType({"nic0": Mask.of(0)})}),
    )
    pod = replace(
        pod,
        containers=(first, *rest),
        requests=MappingProxyType({"cpu": 6000, "memory": 4 << 30}),
        limits=MappingProxyType({"memory": 4 << 30}),
        origin=Origin.IMPORTED,
        others=MappingProxyType({"lanes": ["0.0"]}),
        lifetime=Lifetime(End.UNIT, "web.service", started=True),
        isolation=MappingProxyType({"interrupts": "off"}),
    )
    known = example()
    charge = NodeMemory(2, Mask.of(0), MappingProxyType({"memory": 4 << 30}))
    shared = SharedPod("1", "web", "shop", Source("kubelet", "pods/1"), "OutOfcpu: 8 CPUs")
    return replace(
        known,
        ledger=ledger_of(pod, memory={0: charge}),
        bindings=Bindings(known.bindings.entries, ("machine.slice/old.scope",)),
        host=replace(known.host, offline=Mask.of(16)),
        orphaned=frozenset({"gone"}),
        cordons=Cordons((CordonEntry(Cordon(Mask.parse("4-7"), Mask.of(1)), "DIMM", 5.0),)),
        shared=MappingProxyType({"1": shared}),
    )


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
masks = st.frozensets(st.integers(0, 70), max_size=6).map(Mask.from_ids)
sizes = st.integers(0, 1 << 70)
limits = built(CpuLimits, st.none() | sizes, st.none() | sizes)
amounts = st.dictionaries(names, sizes, max_size=2).map(MappingProxyType)
blocks = st.lists(built(MemoryBlock, names, sizes, masks), max_size=2).map(tuple)
hints = st.builds(
    lambda nodes, preferred: Hint(nodes, preferred=preferred),
    st.none() | st.integers(0, 255),
    st.booleans(),
)
devices = st.dictionaries(
    names, st.lists(names, max_size=2, unique=True).map(tuple), max_size=2
).map(MappingProxyType)


containers = built(
    ContainerAllocation,
    name=names,
    kind=st.sampled_from(ContainerKind),
    isolation=st.sampled_from(Isolation),
    cpus=st.none() | masks,
    memory=blocks,
    devices=devices,
    hint=hints,
    cpu=limits,
    quota_disabled=st.booleans(),
    limits=amounts,
    why=st.text(max_size=8),
)
pods = built(
    PodAllocation,
    uid=names,
    name=st.just("") | names,
    namespace=st.just("") | names,
    qos=st.sampled_from(QosClass),
    spec_digest=st.text(max_size=8),
    containers=st.lists(containers, max_size=3, unique_by=lambda c: c.name).map(tuple),
    cpus=st.none() | masks,
    memory=blocks,
    cpu=limits,
    quota_disabled=st.booleans(),
    requests=amounts,
    limits=amounts,
    origin=st.sampled_from(Origin),
    source=st.none() | built(Source, names, st.text(max_size=8)),
    lifetime=built(Lifetime, st.sampled_from(End), st.text(max_size=8), st.booleans()),
    isolation=st.dictionaries(names, st.text(max_size=8), max_size=2).map(MappingProxyType),
)
charges = built(
    NodeMemory, sizes, masks, st.dictionaries(names, sizes, max_size=2).map(MappingProxyType)
)
ledgers = st.builds(
    lambda allocations, memory: ledger_of(*allocations, memory=memory),
    st.lists(pods, max_size=3, unique_by=lambda p: p.uid),
    st.dictionaries(st.integers(0, 63), charges, max_size=2),
)
states = built(
    Checkpoint,
    ledger=ledgers,
    bindings=built(
        Bindings,
        st.lists(built(Binding, names, names, names), max_size=2).map(tuple),
        st.lists(names, max_size=2).map(tuple),
    ),
    boot_id=st.text(max_size=8),
    orphaned=st.frozensets(names, max_size=2),
    host=built(
        HostFacts,
        masks,
        masks,
        st.lists(
            built(
                NodeFacts,
                st.integers(0, 63),
                masks,
                st.one_of(st.none(), sizes),
                st.dictionaries(sizes, sizes, max_size=2).map(MappingProxyType),
            ),
            max_size=2,
        ).map(tuple),
    ),
    policy=st.dictionaries(names, st.text(max_size=8), max_size=3).map(MappingProxyType),
    agent_version=st.text(max_size=8),
    cordons=st.lists(
        built(
            CordonEntry,
            built(Cordon, masks, masks),
            st.text(max_size=8),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        max_size=12,
    ).map(lambda entries: Cordons(tuple(entries))),
    shared=st.lists(
        built(
            SharedPod,
            names,
            st.text(max_size=8),
            st.text(max_size=8),
            built(Source, names, st.text(max_size=8)),
            st.text(max_size=8),
        ),
        max_size=12,
    ).map(lambda pods: MappingProxyType({pod.uid: pod for pod in pods})),
)
