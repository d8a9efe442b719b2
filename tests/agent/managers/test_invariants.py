"""Whatever is admitted, removed and restarted, on whatever host: what must never happen.

`NUMAWARDEN_SEQUENCES` says how many sequences of each property are tried (README.md, "Tests").
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.managers.admission import admit, remove, start_container
from agent.managers.cpu_topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from tests.agent.managers.hosts import GIB, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from agent.ledger import Ledger
    from agent.managers.rules import Rules
    from agent.pods.model import Container, Pod

SEQUENCES = int(os.environ.get("NUMAWARDEN_SEQUENCES", "150"))
EVERY_SEQUENCE = settings(
    max_examples=SEQUENCES,
    deadline=None,
    derandomize="NUMAWARDEN_SEQUENCES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def machines(draw: st.DrawFn, most_nodes: int = 6) -> Machine:
    """Draw uneven machines: sparse ids, cores of 1, 2 or 4 threads, nodes without CPUs."""
    ids = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=most_nodes)))
    rows: list[tuple[int, int, int, int, int]] = []
    cpu = draw(st.integers(0, 3))
    nodes_per_socket = draw(st.integers(1, 2))
    for position, node in enumerate(ids):
        for _ in range(draw(st.integers(0 if position else 1, 4))):
            core = cpu
            for _ in range(draw(st.sampled_from([1, 2, 2, 2, 4]))):
                rows.append((cpu, core, position // nodes_per_socket, node, node))
                cpu += draw(st.sampled_from([1, 1, 1, 2]))
    memory = st.sampled_from([0, 2 * GIB, 4 * GIB, 16 * GIB])
    return Machine(
        CpuTopology.from_rows(rows),
        tuple(
            MachineNode(
                node,
                draw(memory),
                {2 << 20: draw(st.integers(0, 64))},
                {other: 10 if node == other else draw(st.integers(11, 40)) for other in ids},
            )
            for node in ids
        ),
    )


@st.composite
def rule_sets(draw: st.DrawFn) -> Rules:
    """Draw a machine and a policy for it."""
    machine = draw(machines())
    reserved = draw(st.sampled_from(list(machine.cpus.all)))
    spread = draw(st.booleans())
    return make_rules(
        machine,
        draw(st.sampled_from(TopologyManagerPolicy)),
        draw(st.sampled_from(TopologyManagerScope)),
        reserved=str(reserved),
        memory=draw(st.booleans()),
        managed=draw(st.booleans()),
        full_pcpus_only=not spread and draw(st.booleans()),
        distribute_cpus_across_cores=spread,
        distribute_cpus_across_numa=not spread and draw(st.booleans()),
        strict_cpu_reservation=draw(st.booleans()),
        align_by_socket=draw(st.booleans()),
    )


@st.composite
def containers(draw: st.DrawFn, name: str) -> Container:
    """Draw a container that is exclusive, shares, or asks for nothing."""
    kind = draw(st.sampled_from([app, app, init, sidecar])) if name != "c0" else app
    cpu = draw(st.sampled_from(["1", "2", "3", "4", "500m", "6"]))
    memory = draw(st.sampled_from(["64Mi", "1Gi", "3Gi", "5Gi"]))
    pages = draw(st.sampled_from(["", "", " hugepages-2Mi=4Mi"]))
    asked = draw(
        st.sampled_from(
            [
                guaranteed(f"cpu={cpu} memory={memory}{pages}"),
                guaranteed(f"cpu={cpu} memory={memory}"),
                resources(f"cpu={cpu}"),
                None,
            ]
        )
    )
    return kind(name, asked)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """Draw a pod of one to four containers, half of them with a budget of its own."""
    names = [f"c{number}" for number in range(draw(st.integers(1, 4)))]
    budget = None
    if draw(st.booleans()):
        cpu = draw(st.integers(1, 10))
        budget = guaranteed(f"cpu={cpu} memory={draw(st.integers(1, 12))}Gi")
    return pod(*(draw(containers(name)) for name in names), of_pod=budget, uid=uid)


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_no_sequence_breaks_an_invariant(rules: Rules, data: st.DataObject) -> None:
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 10))):
        step = data.draw(st.sampled_from(["admit", "admit", "admit", "remove", "start", "again"]))
        ledger = _step(rules, ledger, step, number, data)
        assert broken_invariants(rules, ledger) == []
    for uid in list(ledger.grants):
        ledger = remove(rules, ledger, uid)
        assert broken_invariants(rules, ledger) == []
    assert ledger == rules.empty_ledger()


def _step(rules: Rules, ledger: Ledger, step: str, number: int, data: st.DataObject) -> Ledger:
    if step == "admit":
        asked = data.draw(pods(f"u-{number}"))
        decision = admit(rules, ledger, asked)
        assert decision == admit(rules, ledger, asked), "the same question, the same answer"
        if not decision.admitted:
            assert decision.ledger is ledger
            return ledger
        assert admit(rules, decision.ledger, asked).grant == decision.grant
        return decision.ledger
    if not ledger.grants:
        return ledger
    uid = data.draw(st.sampled_from(sorted(ledger.grants)))
    if step == "remove":
        return remove(rules, ledger, uid)
    names = [container.name for container in ledger.grants[uid].containers]
    return start_container(rules, ledger, uid, data.draw(st.sampled_from(names)))


@given(rules=rule_sets(), asked=pods("u-1"))
@EVERY_SEQUENCE
def test_removing_undoes_admitting(rules: Rules, asked: Pod) -> None:
    before = rules.empty_ledger()
    decision = admit(rules, before, asked)
    assert remove(rules, decision.ledger, "u-1") == before
