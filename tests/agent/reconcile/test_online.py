from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.allocation import Isolation, PodAllocation
from agent.managers.cpu.manager import exclusive_cpus
from agent.reconcile.target import lacking, usable
from sysfs.described import regular_host, with_offline
from sysfs.host import WithheldCpus
from sysfs.mask import Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger

HOST = regular_host(cores_per_node=8, threads=1)


def ledger() -> Ledger:
    """Return a pod whose budget is CPUs 1-4: c1 has 1-2 of its own, c2 shares 3-4."""
    budget = pod(
        app("c1", guaranteed("cpu=2 memory=1Gi")), app("c2"), of_pod=guaranteed("cpu=4 memory=2Gi")
    )
    return with_pod(make_rules(), budget)


def only(allocated: Ledger) -> PodAllocation:
    (allocation,) = allocated.allocations.values()
    return allocation


@pytest.mark.parametrize(
    ("offline", "withheld", "first", "second"),
    [
        # What still runs keeps its set, so that offline CPUs come back by themselves.
        ("2", "", ("1-2", Isolation.CONTAINER), ("3-4", Isolation.POD)),
        ("1-2", "", ("1-4", Isolation.POD), ("3-4", Isolation.POD)),
        ("1-4", "", (None, Isolation.HOST), (None, Isolation.HOST)),
        # A withheld CPU is in no set.
        ("", "2", ("1", Isolation.CONTAINER), ("3-4", Isolation.POD)),
        ("", "1-2", ("3-4", Isolation.POD), ("3-4", Isolation.POD)),
        ("", "1-4", (None, Isolation.HOST), (None, Isolation.HOST)),
    ],
)
def test_what_is_left_of_a_pods_cpus(
    offline: str, withheld: str, first: tuple[str | None, Isolation],
    second: tuple[str | None, Isolation],
) -> None:  # fmt: skip
    host = with_offline(HOST, Mask.parse(offline))
    if withheld:
        host = replace(host, withheld=(WithheldCpus(Mask.parse(withheld), "/ovs.slice"),))
    left = usable(ledger(), host)
    found = [(c.cpus and str(c.cpus), c.isolation) for c in only(left).containers]
    assert found == [first, second]
    # What is above the pod has to have as much as the pod.
    own = Mask.parse("1-4") - Mask.parse(withheld)
    assert exclusive_cpus(left) == (own if second[0] else Mask(0))
    assert (first[1], only(left).containers[0].quota_disabled) != (Isolation.POD, True)


def test_an_idle_sibling_that_is_withheld_is_not_kept_idle() -> None:
    idle = ledger_with(replace(only(ledger()), idle=Mask.parse("5-6")))
    host = replace(HOST, withheld=(WithheldCpus(Mask.of(6), "/ovs.slice"),))
    assert only(usable(idle, host)).idle == Mask.of(5)


def test_what_a_pod_lacks_is_said_with_what_has_it() -> None:
    (uid,) = ledger().allocations
    partition, narrow = (
        WithheldCpus(Mask.parse("2-3"), "/ovs.slice"),
        WithheldCpus(Mask.parse("4-7"), "/tenant", Mask.parse("0-3")),
    )
    assert lacking(ledger(), ()) == {}
    assert lacking(ledger(), (WithheldCpus(Mask.of(7), "/ovs.slice"),)) == {}
    assert lacking(ledger(), (partition, narrow)) == {
        uid: "CPUs 2-3 belong to the partition /ovs.slice and CPUs 4 are outside of /tenant, which "
        "allows only 0-3, so the pod has only 1 of its 1-4; end that partition, widen /tenant, "
        "or remove the pod and admit it again"
    }


def test_nodes_without_memory_are_never_written() -> None:
    allocated = ledger()
    first, second = HOST.nodes
    assert only(allocated).memory[0].nodes == Mask.of(0)
    bare = replace(HOST, nodes=(replace(first, memory_bytes=0), second))
    allowed = tuple(replace(c, memory_nodes=Mask.of(0, 1)) for c in only(allocated).containers)
    asking = allocated.with_allocation(replace(only(allocated), memory=(), containers=allowed))
    assert {each.memory_nodes for each in only(usable(asking, bare)).containers} == {Mask.of(1)}
    assert only(usable(allocated, bare)).memory == ()
    assert only(usable(allocated, bare)).cpus == only(allocated).cpus


def test_what_is_known_to_be_usable_is_not_looked_at_again() -> None:
    allocated = ledger()
    assert usable(allocated, HOST) is allocated
    renamed = (replace(each, name="renamed") for each in allocated.allocations.values())
    changed = ledger_with(*renamed)
    host = with_offline(HOST, Mask.parse("2"))
    assert usable(allocated, host, known=allocated) is allocated
    assert usable(changed, host, known=allocated) == usable(changed, host)
    assert usable(changed, with_offline(HOST, Mask.parse("1-2")), known=allocated) != changed
