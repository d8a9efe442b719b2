from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.manager import shared_pool
from agent.managers.memory.state import memory_charge
from agent.tools.replay.play import StepOutcome, play
from tests.agent.tools.replay.texts import HEAD, admitting, sequence

if TYPE_CHECKING:
    from pathlib import Path


def played(folder: Path, *steps: str, head: str = HEAD) -> list[StepOutcome]:
    return list(play(sequence(folder, *steps, head=head)))


def pools(outcomes: list[StepOutcome]) -> list[str]:
    return [str(shared_pool(o.state.rules, o.state.ledger)) for o in outcomes]


def test_every_step_finds_what_the_ones_before_it_left(tmp_path: Path) -> None:
    outcomes = played(tmp_path, admitting("a"), admitting("b", 4), "remove: a", admitting("c"))
    assert pools(outcomes) == ["0,2-8,10-15", "0,4-8,12-15", "0-1,4-9,12-15", "0,4-8,12-15"]
    assert [outcome.decision is not None for outcome in outcomes] == [True, True, False, True]


def test_a_rejected_pod_changes_nothing_and_says_why(tmp_path: Path) -> None:
    outcomes = played(tmp_path, admitting("a"), admitting("b", 99))
    assert outcomes[1].state == outcomes[0].state
    assert outcomes[1].decision is not None
    assert outcomes[1].decision.rejection is not None
    assert outcomes[1].decision.rejection.reason == "OutOfcpu"


def test_what_concerns_a_pod_that_was_rejected_does_nothing(tmp_path: Path) -> None:
    outcomes = played(tmp_path, admitting("b", 99), "start: {pod: b, container: main}", "remove: b")
    assert [outcome.notes for outcome in outcomes[1:]] == [("pod default/b holds nothing",)] * 2
    assert len(set(pools(outcomes))) == 1


def test_starting_a_container_ends_the_init_containers_before_it(tmp_path: Path) -> None:
    head = HEAD.replace("}\n", ", memoryManagerPolicy: Static, systemReserved: {memory: 1Gi}}\n", 2)
    head = head.replace("{shape: {}, memoryManagerPolicy: Static, systemReserved: {memory: 1Gi}}",
                        "{shape: {}}")  # fmt: skip
    both = "{requests: {cpu: 1, memory: %s}, limits: {cpu: 1, memory: %s}}"
    pod = (
        "admit: {metadata: {name: p}, spec: {"
        f"initContainers: [{{name: i, resources: {both % ('3Gi', '3Gi')}}}],"
        f" containers: [{{name: c, resources: {both % ('1Gi', '1Gi')}}}]}}}}"
    )
    outcomes = played(tmp_path, pod, "start: {pod: p, container: c}", head=head)
    reserved = [
        sum(node.reserved["memory"] for node in memory_charge(outcome.state.ledger).values()) >> 30
        for outcome in outcomes
    ]
    assert reserved == [3, 1]


class TestRestart:
    def test_allocations_stay_and_new_pods_follow_the_new_rules(self, tmp_path: Path) -> None:
        outcomes = played(
            tmp_path,
            admitting("a"),
            "restart: {config: {cpuManagerPolicy: static, reservedSystemCPUs: 0-3}}",
            admitting("b"),
        )
        assert pools(outcomes)[:2] == ["0,2-8,10-15"] * 2
        after = outcomes[2].state
        assert str(after.ledger.allocations["uid-a"].exclusive_cpus) == "1,9"
        assert (
            not after.ledger.allocations["uid-b"].exclusive_cpus & after.rules.policy.cpu.reserved
        )

    def test_memory_is_counted_as_soon_as_the_policy_is_static(self, tmp_path: Path) -> None:
        config = "cpuManagerPolicy: static, reservedSystemCPUs: '0', memoryManagerPolicy: Static"
        restart = f"restart: {{config: {{{config}, systemReserved: {{memory: 1Gi}}}}}}"
        outcomes = played(tmp_path, admitting("a"), restart)
        before, after = (memory_charge(outcome.state.ledger) for outcome in outcomes)
        assert (before, sorted(after)) == ({}, [0, 1])

    def test_cpus_that_went_offline_are_named(self, tmp_path: Path) -> None:
        outcomes = played(tmp_path, admitting("a"), "restart: {host: {shape: {offline: '9'}}}")
        assert outcomes[1].notes == ("pod default/a holds CPUs 9, which are no longer online",)
