from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.allocation import Origin
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.policy import IsolationMode, PluginDevice
from agent.managers.resize import resize
from agent.managers.topology.hint import NO_AFFINITY
from agent.tools.kubelet_state.cpu import CPU_FORMAT
from agent.tools.kubelet_state.exporting import export_notes, kubelet_state
from agent.tools.kubelet_state.files import KubeletState, encode_files
from agent.tools.kubelet_state.format import CannotExportError
from agent.tools.kubelet_state.importing import take_over
from agent.tools.kubelet_state.memory import MEMORY_FORMAT
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.tools.kubelet_state.machines import PATH, admitted

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

BUDGET = pod(app("a", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=2 memory=1Gi"))


def through_files(rules: EffectivePolicy, ledger: Ledger) -> tuple[KubeletState, dict[str, bytes]]:
    """Return what is read from the files of a ledger, and the files."""
    contents = encode_files(kubelet_state(rules, ledger), pod_level=rules.policy.pod_level_managers)
    read = KubeletState(
        CPU_FORMAT.read(contents["cpu_manager_state"], PATH),
        MEMORY_FORMAT.read(contents["memory_manager_state"], PATH),
    )
    return read, contents


@given(rules=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_there_and_back_is_the_same_and_the_pods_confirm_it(
    rules: EffectivePolicy, data: st.DataObject
) -> None:
    asked: dict[str, Pod] = {}
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 6))):
        one = data.draw(pods(f"u-{number}"))
        decision = admit(rules, ledger, one)
        if decision.admitted:
            asked[one.uid] = one
        ledger = decision.ledger
    removing, starting = data.draw(st.booleans()), data.draw(st.booleans())
    if asked and removing:
        ledger = remove(rules, ledger, data.draw(st.sampled_from(sorted(asked))))
    if ledger.allocations and starting:
        uid = data.draw(st.sampled_from(sorted(ledger.allocations)))
        last = ledger.allocations[uid].containers[-1].name
        ledger = start_container(rules, ledger, uid, last)

    read, contents = through_files(rules, ledger)
    taken = take_over(rules, read)

    assert exclusive_cpus(taken.ledger) == exclusive_cpus(ledger)
    assert memory_charge(taken.ledger) == memory_charge(ledger)
    assert through_files(rules, taken.ledger)[1] == contents
    for uid in taken.ledger.allocations:
        confirmed = admit(rules, taken.ledger, asked[uid])
        assert confirmed.already_admitted, confirmed.rejection
        assert confirmed.allocation == what_files_hold(ledger.allocations[uid])
        assert through_files(rules, confirmed.ledger)[1] == contents
    completed = take_over(rules, read, asked).ledger
    assert through_files(rules, completed)[1] == contents
    assert {uid: what_files_hold(replace(
        allocation, spec_digest=ledger.allocations[uid].spec_digest, origin=Origin.DECIDED
    ))
            for uid, allocation in completed.allocations.items()} == {
        uid: what_files_hold(ledger.allocations[uid]) for uid in completed.allocations
    }  # fmt: skip


def what_files_hold(allocation: PodAllocation) -> PodAllocation:
    """Return an allocation without what no file has: its hints and its devices."""
    containers = tuple(
        replace(each, hint=NO_AFFINITY, devices={}, device_nodes={})
        for each in allocation.containers
    )
    return replace(allocation, containers=containers)


def test_a_budget_cannot_be_written_without_the_gate() -> None:
    rules = make_rules()
    ledger = admitted(rules, BUDGET)
    with pytest.raises(CannotExportError, match="PodLevelResourceManagers: true"):
        kubelet_state(make_rules(managed=False), ledger)


def test_allocations_that_the_host_cannot_enforce_are_not_written() -> None:
    ledger = admitted(make_rules(), BUDGET)
    smaller = make_rules(Machine.of(regular_host(cores_per_node=1, threads=1)))
    with pytest.raises(CannotExportError, match=r"CPUs .* are in the state but not online"):
        kubelet_state(smaller, ledger)


def test_an_empty_shared_pool_is_noted() -> None:
    rules = make_rules(memory=False, strict_cpu_reservation=True)
    ledger = admitted(rules, pod(app("a", guaranteed("cpu=15 memory=1Gi"))))
    (note,) = export_notes(kubelet_state(rules, ledger), ledger)
    assert note.startswith("the shared pool is empty")
    empty = rules.empty_ledger()
    assert list(export_notes(kubelet_state(rules, empty), empty)) == []


def test_siblings_that_stay_idle_are_shared_in_the_kubelets_files_and_noted() -> None:
    rules = make_rules(SMT, memory=False, smt=IsolationMode.ALWAYS)
    ledger = admitted(rules, pod(app("a", guaranteed("cpu=2 memory=1Gi"))))
    state = kubelet_state(rules, ledger)
    assert state.cpu is not None
    assert state.cpu.default == Mask.parse("0,3-15")
    (note,) = export_notes(state, ledger)
    assert note.startswith("CPUs 9-10 stay idle")


def test_pods_that_a_kubelet_would_not_keep_are_named() -> None:
    rules = make_rules()
    ledger = admitted(rules, BUDGET)
    (note,) = export_notes(kubelet_state(rules, ledger), ledger)
    assert BUDGET.uid in note
    assert "end them before the kubelet starts" in note


def test_pods_whose_devices_a_kubelet_would_give_again_are_named() -> None:
    gpu = "example.com/gpu"
    rules = make_rules(memory=False, devices={gpu: (PluginDevice("g0"),)})
    asked = pod(app("a", guaranteed(f"cpu=1 memory=1Gi {gpu}=1")))
    ledger = admitted(rules, asked, pod(app("a", guaranteed("cpu=1 memory=1Gi")), uid="u-2"))
    (note,) = export_notes(kubelet_state(rules, ledger), ledger)
    assert note.startswith(f"pods with devices ({asked.uid}): the files do not have them")


def test_pods_that_were_resized_are_named() -> None:
    rules, asked = make_rules(), pod(app("a", guaranteed("cpu=1 memory=1Gi")))
    ledger = admitted(rules, asked, pod(app("a", guaranteed("cpu=1 memory=1Gi")), uid="u-2"))
    more = replace(asked, containers=(app("a", guaranteed("cpu=2 memory=1Gi")),))
    ledger = resize(rules, ledger, more).ledger
    (note,) = export_notes(kubelet_state(rules, ledger), ledger)
    assert note.startswith(f"pods that were resized ({asked.uid}): the files have their current")
