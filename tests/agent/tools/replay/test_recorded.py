from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.tools.replay.play import Admit, Ignored, Remove, Restart, Start, play
from agent.tools.replay.reading import ReplayError
from agent.tools.replay.recorded import recorded_sequence, recorded_sequences
from sysfs.mask import Mask
from tests.agent.tools.replay.cases import line_of
from tests.conformance.admit import Replay
from tests.conformance.selected import selected

if TYPE_CHECKING:
    from pathlib import Path

    from agent.managers.allocations.ledger import Ledger
    from tests.conformance.outcome import Case

POD = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}


def test_topology_and_configuration_are_what_was_recorded(tmp_path: Path) -> None:
    line = line_of(
        config={
            "cpu": {
                "policy": "static",
                "quantity": "1500m",
                "options": {"full-pcpus-only": "true"},
            },
            "memory": {
                "policy": "Static",
                "reserved": [{"numa": 1, "limits": {"memory": "4Mi"}}],
                "node_allocatable_reservation": {"memory": "4Mi"},
            },
            "topology": {"policy": "best-effort", "scope": "pod"},
            "devices": {"example.com/x": [{"id": "d", "numa": [1], "healthy": False}]},
        },
        gates={"PodLevelResourceManagers": True},
    )
    rules = recorded_sequence(line, "x:1", tmp_path).begin.rules
    assert rules is not None
    assert [row.uncore for row in rules.machine.cpus.rows] == [0, 0, 1]
    assert rules.machine.nodes[0].hugepages == {2 << 20: 4}
    policy = rules.policy
    assert (len(policy.cpu.reserved), policy.cpu.options.full_pcpus_only) == (2, True)
    assert policy.memory.reserved == {1: {"memory": 4 << 20}}
    assert (str(policy.topology.policy), policy.topology.is_pod_scope) == ("best-effort", True)
    assert policy.pod_level_managers
    (device,) = policy.devices["example.com/x"]
    assert (device.id, device.nodes, device.healthy) == ("d", Mask.of(1), False)


def test_steps_keep_their_numbers(tmp_path: Path) -> None:
    steps = [
        {"op": "admit", "pod": POD},
        {"op": "start", "uid": "u", "container": "c"},
        {"op": "set_state", "uid": "u", "container": "c", "state": "terminated"},
        {"op": "stop", "uid": "u", "container": "c"},
        {"op": "remove", "uid": "u"},
        {"op": "remove", "uid": "unknown"},
        {"op": "restart"},
    ]
    sequence = recorded_sequence(line_of(steps=steps), "x:1", tmp_path)
    assert [number for number, _ in sequence.steps] == list(range(7))
    found = [step for _, step in sequence.steps]
    assert isinstance(found[0], Admit)
    assert found[1:6] == [
        Start("default/p", "u", "c"),
        Ignored("set_state"),
        Ignored("stop"),
        Remove("default/p", "u"),
        Remove("unknown", "unknown"),
    ]
    assert isinstance(found[6], Restart)


def test_a_restart_may_change_topology_gates_and_configuration_for_good(tmp_path: Path) -> None:
    config = json.loads(line_of())["config"]
    none = {**config, "cpu": {"policy": "none"}}
    small = {**json.loads(line_of())["topology"], "cpus": [[0, 0, 0, 0, 0], [2, 2, 1, 1, 1]]}
    steps = [
        {"op": "restart", "gates": {"PodLevelResourceManagers": True}},
        {"op": "restart", "topology": small},
        {"op": "restart", "config": none},
    ]
    sequence = recorded_sequence(line_of(steps=steps), "x:1", tmp_path)
    rules = [step.rules for _, step in sequence.steps if isinstance(step, Restart) and step.rules]
    assert [one.policy.pod_level_managers for one in rules] == [True, True, True]
    assert [len(one.machine.cpus.all) for one in rules] == [3, 2, 2]
    assert [one.static_cpus for one in rules] == [True, True, False]


@pytest.mark.parametrize("apply_defaults", [False, True])
def test_pods_are_defaulted_only_where_they_were(tmp_path: Path, *, apply_defaults: bool) -> None:
    limits = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}
    steps = [{"op": "admit", "pod": {**POD, "spec": limits}}]
    line = line_of(steps=steps, apply_defaults=apply_defaults)
    ((_, admit),) = recorded_sequence(line, "x:1", tmp_path).steps
    assert isinstance(admit, Admit)
    assert admit.pod is not None
    assert bool(admit.pod.containers[0].resources.requests) is apply_defaults


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_file_holds_a_sequence_in_each_line(tmp_path: Path, name: str) -> None:
    content = f"{line_of()}\n\n{line_of(name='second')}\n".encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert [found.name for found in recorded_sequences(file)] == ["made/up", "second"]


class TestMistakes:
    @pytest.mark.parametrize(
        "line",
        [
            "no json",
            "[]",
            "{}",
            '{"topology": 3, "config": {}, "steps": []}',
            line_of(steps=[{"op": "dance"}]),
            line_of(steps=[{"op": "remove"}]),
            line_of(steps=5),
            line_of(config={"cpu": {}}),
        ],
    )
    def test_a_line_that_is_not_a_sequence_is_rejected_by_number(
        self, tmp_path: Path, line: str
    ) -> None:
        file = tmp_path / "a.jsonl"
        file.write_text(f"{line_of()}\n{line}\n")
        with pytest.raises(ReplayError, match=r"a\.jsonl:2: not a recorded sequence"):
            list(recorded_sequences(file))

    def test_a_topology_that_is_none_is_rejected_with_its_place(self, tmp_path: Path) -> None:
        line = line_of(topology={"cpus": [[0, 0, 0]], "numa": [{"id": 0, "memory": "x"}]})
        with pytest.raises(ReplayError) as caught:
            recorded_sequence(line, "x:1", tmp_path)
        assert {problem.path for problem in caught.value.problems} == {
            "host.rows.cpus[0]",
            "host.rows.nodes[0].memory",
        }

    @pytest.mark.parametrize("content", [b"\xff\xfe", gzip.compress(b"{}", mtime=0)[:-6], b"plain"])
    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / ("a.jsonl" if content == b"\xff\xfe" else "a.jsonl.gz")
        file.write_bytes(content)
        with pytest.raises(ReplayError, match="this cannot be read"):
            list(recorded_sequences(file))


def compared(case: Case, folder: Path) -> tuple[list[Ledger], list[Ledger]]:
    """Return the ledgers after every step as replayed, and as compared with the recording."""
    outcomes = play(recorded_sequence(json.dumps(case), case["name"], folder))
    replayed = [outcome.state.ledger for outcome in outcomes if outcome.state]
    comparison = Replay.of(case)
    comparison.parted = True  # so each step starts from our own ledger, whatever the kubelet's is
    expected = []
    for number, (step, answer) in enumerate(
        zip(case["steps"], case["expected"]["steps"], strict=True)
    ):
        comparison._take(number, step, answer)
        expected.append(comparison.ledger)
    return replayed, expected


def test_recorded_sequences_are_replayed_as_they_are_compared(tmp_path: Path) -> None:
    def plain(case: dict[str, Any]) -> bool:
        restarts = any(step["op"] == "restart" for step in case["steps"])
        return not restarts and "start_error" not in case["expected"]

    cases = [case for family in ("admit", "lifecycle") for case in selected(family) if plain(case)]
    assert len(cases) > 50
    for case in cases[:: len(cases) // 50]:
        replayed, expected = compared(case, tmp_path)
        assert replayed == expected, case["name"]
