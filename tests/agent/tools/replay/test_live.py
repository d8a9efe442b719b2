from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.api.documents import decode, encode
from agent.api.views import NOTHING_GIVEN, SnapshotDocument, snapshot_document
from agent.config.load import load_config
from agent.config.model import Config, ConfigError
from agent.config.resolve import managers_beside_kubelet, resolve
from agent.managers.admission import admit, remove
from agent.managers.machine import Machine
from agent.managers.policy import TopologyManagerPolicy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import load_pod
from agent.pods.model import GivenDevice
from agent.state import checkpoint as codec
from agent.state.checkpoint import Checkpoint
from agent.tools.replay.play import Admit, StepOutcome, play
from agent.tools.replay.reading import ReplayError, live_sequence
from sysfs.described import regular_host
from sysfs.mask import EMPTY, Mask
from tests.agent.server.support import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.ledger import Ledger
    from agent.pods.model import GivenDevices

CONFIG = """
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
reservedSystemCPUs: "0"
systemReserved: {memory: 1Gi}
evictionHard: {memory.available: "0"}
agent:
  devices: {example.com/gpu: [{id: a, numaNodes: [0]}, {id: b, numaNodes: [1]}]}
"""
MACHINE = Machine.of(regular_host(cores_per_node=4, threads=2))


def rules_of(config: Config) -> EffectivePolicy:
    managers = (*managers_beside_kubelet(config), *MANAGERS)
    return EffectivePolicy(MACHINE, resolve(config, MACHINE), managers)


def snapshot_of(
    ledger: Ledger, text: str = CONFIG, given: Mapping[str, GivenDevices] = NOTHING_GIVEN
) -> SnapshotDocument:
    """Return the snapshot of an agent with these allocations, as it arrives."""
    config = load_config(text, "x")
    saved = codec.encode(Checkpoint(ledger))
    rules = rules_of(config)
    taken = snapshot_document(config, rules, EMPTY, saved, version="1", given=given)
    return decode(encode(taken), SnapshotDocument)


def played(
    snapshot: SnapshotDocument, *manifests: bytes, settings: tuple[str, ...] = ()
) -> list[StepOutcome]:
    files = [(Path(f"{number}.yaml"), text) for number, text in enumerate(manifests)]
    return list(play(live_sequence(snapshot, files, settings)))


PODS = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3", "6", "500m"]), st.sampled_from(["1Gi", "9Gi"])),
    max_size=6,
)


@given(PODS, st.sets(st.integers(0, 5)), st.sampled_from(["1", "4", "9", "14"]))
def test_a_pod_is_decided_as_the_agent_would(
    before: list[tuple[str, str]], ended: set[int], cpu: str
) -> None:
    rules = rules_of(load_config(CONFIG, "x"))
    ledger = rules.empty_ledger()
    for number, (cpus, memory) in enumerate(before):
        pod = load_pod(manifest(f"p{number}", f"u-{number}", cpu=cpus, memory=memory), "x")
        ledger = admit(rules, ledger, pod).ledger
    for number in ended:
        ledger = remove(rules, ledger, f"u-{number}")
    text = manifest("new", "u-new", cpu=cpu)
    (outcome,) = played(snapshot_of(ledger), text)
    expected = admit(rules, ledger, load_pod(text, "x"))
    assert outcome.decision is not None
    assert outcome.decision.allocation == expected.allocation
    assert outcome.decision.rejection == expected.rejection


@given(
    PODS,
    st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), st.sampled_from([(), (0,), (1,), (0, 1)])),
    st.sampled_from(["1", "4", "7", "14"]),
)
def test_a_pod_is_decided_with_the_devices_that_the_kubelet_gave_it(
    before: list[tuple[str, str]], nodes: dict[str, tuple[int, ...]], cpu: str
) -> None:
    text = f"{CONFIG}  kubelet: {{enabled: true}}\n"
    rules = rules_of(load_config(text, "x"))
    ledger = rules.empty_ledger()
    for number, (cpus, memory) in enumerate(before):
        pod = load_pod(manifest(f"p{number}", f"u-{number}", cpu=cpus, memory=memory), "x")
        ledger = admit(rules, ledger, pod).ledger
    devices = tuple(GivenDevice("x.org/nic", each, Mask.of(*on)) for each, on in nodes.items())
    raw = manifest("new", "u-new", cpu=cpu)
    asked = replace(load_pod(raw, "x"), given_devices={"c0": devices} if devices else {})
    taken = snapshot_of(ledger, text, {"shop/new": asked.given_devices, "shop/other": {}})
    (outcome,) = played(taken, raw)
    expected = admit(rules, ledger, asked)
    assert outcome.decision is not None
    assert outcome.decision.allocation == expected.allocation
    assert outcome.decision.rejection == expected.rejection


def test_pods_are_decided_one_after_the_other() -> None:
    empty = rules_of(load_config(CONFIG, "x")).empty_ledger()
    pods = [manifest(f"p{number}", f"u-{number}", cpu="7") for number in range(3)]
    decisions = [outcome.decision for outcome in played(snapshot_of(empty), *pods)]
    assert [each is not None and each.admitted for each in decisions] == [True, True, False]


def test_a_setting_is_laid_over_the_configuration() -> None:
    empty = rules_of(load_config(CONFIG, "x")).empty_ledger()
    settings = ("topologyManagerPolicy=single-numa-node",)
    (outcome,) = played(snapshot_of(empty), manifest(), settings=settings)
    policy = outcome.state.rules.policy.topology.policy
    assert policy is TopologyManagerPolicy.SINGLE_NUMA_NODE


def test_a_pod_without_a_uid_has_the_one_that_the_agent_gives_it() -> None:
    """So a pod that is admitted already is recognized."""
    empty = rules_of(load_config(CONFIG, "x")).empty_ledger()
    text = manifest(uid=None)
    ((_, step),) = live_sequence(snapshot_of(empty), [(Path("a"), text)]).steps
    assert isinstance(step, Admit)
    assert step.uid == load_pod(text, "manifest").uid


def test_a_wrong_manifest_is_named_by_its_file() -> None:
    empty = rules_of(load_config(CONFIG, "x")).empty_ledger()
    with pytest.raises(ReplayError, match=r"bad\.yaml"):
        live_sequence(snapshot_of(empty), [(Path("bad.yaml"), b"kind: Pod")])


def test_a_setting_that_does_not_fit_the_host_is_an_error() -> None:
    empty = rules_of(load_config(CONFIG, "x")).empty_ledger()
    with pytest.raises(ConfigError, match="reservedSystemCPUs"):
        live_sequence(snapshot_of(empty), [], ("reservedSystemCPUs=99",))
