from __future__ import annotations

from agent.api import views
from agent.api.documents.kernel import KernelDocument
from agent.api.documents.pods import DeliveryDocument
from agent.managers.allocation import ContainerAllocation, Isolation, MemoryBlock, PodAllocation
from agent.managers.decision import Decision, HintTrace
from agent.managers.delivery import Delivery, DeviceNode, Mount
from agent.managers.ledger import Ledger
from agent.managers.topology.hint import Hint
from agent.pods.model import ContainerKind, QosClass
from agent.server.pod_records import PodRecord
from sysfs.mask import Mask
from tests.agent.reconcile.pods import unenforced

POOL = Mask.parse("0,4-7")


def pod(*containers: ContainerAllocation) -> PodAllocation:
    return PodAllocation("u", "web", "shop", QosClass.GUARANTEED, "digest", containers)


def test_what_is_shared_and_not_pinned_differs_from_what_is_a_containers_own() -> None:
    memory = (MemoryBlock("memory", 4096, Mask.of(1, 2)),)
    own = ContainerAllocation("a", ContainerKind.APP, Isolation.CONTAINER, Mask.of(1), memory)
    document = views.pod_document(pod(own, ContainerAllocation("b", ContainerKind.APP)), POOL)
    assert [container.cpus for container in document.containers] == ["1", "0,4-7"]
    assert [container.mems for container in document.containers] == ["1-2", None]
    assert document.exclusive_cpus == "1"


def test_differences_mean_that_it_is_not_enforced() -> None:
    document = views.pod_document(pod(), POOL, record=PodRecord(unenforced=(unenforced("no"),)))
    assert not document.enforcement.enforced


def test_cgroups_stand_with_their_container() -> None:
    own = KernelDocument(cgroup="/pod/a")
    whole = KernelDocument(cgroup="/pod")
    document = views.pod_document(
        pod(ContainerAllocation("a", ContainerKind.APP)),
        POOL,
        kernel={"a": (own,), None: (whole,)},
    )
    assert document.kernel == (whole,)
    assert document.containers[0].kernel == (own,)


def test_what_was_delivered_stands_with_its_container_under_its_cdi_name() -> None:
    delivery = Delivery(
        environment={"A": "1"},
        mounts=(Mount("/opt/a", "/usr/a", read_only=True),),
        device_nodes=(DeviceNode("/dev/given", "/dev/a", "r"),),
        annotations={"example.com/a": "b"},
        cdi_devices=("example.com/gpu=0",),
        pci_addresses=("0000:3b:02.1",),
    )
    given = ContainerAllocation("a", ContainerKind.APP, delivery=delivery)
    nothing = ContainerAllocation("b", ContainerKind.APP)
    document = views.pod_document(pod(given, nothing), POOL, cdi_names={"a": "n.dev/pod=u-a"})
    assert [each.delivery for each in document.containers] == [
        DeliveryDocument(
            environment={"A": "1"},
            mounts=(Mount(container_path="/opt/a", host_path="/usr/a", read_only=True),),
            device_nodes=(
                DeviceNode(container_path="/dev/given", host_path="/dev/a", permissions="r"),
            ),
            annotations={"example.com/a": "b"},
            cdi_devices=("example.com/gpu=0",),
            pci_addresses=("0000:3b:02.1",),
            cdi_device="n.dev/pod=u-a",
        ),
        None,
    ]


def test_of_many_hints_the_best_few_are_reported_and_all_are_counted() -> None:
    hints = [Hint(mask, preferred=mask.bit_count() == 1) for mask in range(1, 256)]
    trace = HintTrace(None, (("cpu", {"cpu": hints, "none": None, "never": ()}),))
    decision = Decision("u", Ledger(), hints=(trace,))
    (reported,) = views.explanation_document(decision).hints
    (provider,) = reported.providers
    best = provider.hints["cpu"]
    assert best is not None
    assert [hint.nodes for hint in best] == [str(node) for node in range(8)]
    assert all(hint.preferred for hint in best)
    assert provider.counts == {"cpu": 255, "none": 0, "never": 0}
    assert provider.hints["none"] is None
    assert provider.hints["never"] == ()


def test_how_many_containers_were_found_is_said_of_those_that_live_as_long_as_the_pod() -> None:
    record = PodRecord(running=frozenset({"setup", "a"}), not_found=("b",), absence="not found")
    kinds = {"setup": ContainerKind.INIT, "a": ContainerKind.SIDECAR, "b": ContainerKind.APP}
    document = views.pod_document(
        pod(*(ContainerAllocation(name, kind) for name, kind in kinds.items())),
        POOL,
        record=record,
    )
    assert document.containers_found == 1
    assert (document.not_found, document.absence) == (("b",), "not found")
