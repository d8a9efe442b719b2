"""Going on from where the kubelet stands after an answer that is right instead of equal."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent.managers.allocation import DEVICES, MemoryBlock
from agent.managers.cpu.manager import shared_pool
from agent.managers.demand import PodPart, make_allocation
from agent.managers.memory.state import NodeMemory, memory_charge
from agent.managers.rules import charged, released
from agent.managers.topology.hint import Hint
from agent.pods.model import CPU, MEMORY
from sysfs.mask import Mask
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from tests.conformance.invariants import Before

    Document = Mapping[str, Any]


def followed(
    rules: EffectivePolicy, ledger: Ledger, start: Before, pod: Pod | None, answer: Document
) -> Ledger | None:
    """Return the kubelet's state after a recorded admission as a ledger of ours.

    `ledger` is the one before the admission, `start` what was allocated when the agent was started,
    `pod` None for one that we take for invalid. None where the kubelet's state can be none of ours:
    it gave something twice or out of the reserve, or holds more than its answer says.
    """
    after = ledger
    if answer["admitted"]:
        if pod is None:
            return None
        parts = _parts_of(answer["pod"])
        hints = {name: _hint(one["hint"]) for name, one in answer["pod"]["containers"].items()}
        allocation = make_allocation(rules.demand(pod), parts, hints)
        after = charged(rules, ledger, allocation)
    elif pod is not None and pod.uid in ledger.allocations:
        after = released(rules, ledger, pod.uid)  # a running pod that is rejected after a restart
    after = after.with_part(MEMORY, recorded_memory(ledger, answer["state"]))
    if rules.static_cpus and str(shared_pool(rules, after)) != answer["state"]["default"]:
        return None
    return None if broken_invariants(rules, after, start) else after


def recorded_memory(ledger: Ledger, state: Document) -> Mapping[int, NodeMemory]:
    """Return the recorded charge of memory by node, the ledger's own where none was recorded."""
    if "mem_nodes" not in state:
        return memory_charge(ledger)
    return MappingProxyType(
        {
            int(node): NodeMemory(
                charge["assignments"],
                Mask.from_ids(charge["cells"]),
                {kind: reserved for kind, (_, reserved) in charge["memory"].items()},
            )
            for node, charge in state["mem_nodes"].items()
        }
    )


def _parts_of(allocation: Document) -> dict[str, PodPart]:
    containers: Mapping[str, Document] = allocation["containers"]
    own = {
        name: Mask.parse(one["cpus"]) for name, one in containers.items() if one["cpus"] is not None
    }
    cpus = None if allocation["cpus"] is None else Mask.parse(allocation["cpus"])
    blocks = {name: _blocks(one["memory"]) for name, one in containers.items()}
    return {
        CPU: PodPart(own, cpus),
        MEMORY: PodPart(blocks, _blocks(allocation["memory"])),
        DEVICES: PodPart({name: _devices(one) for name, one in containers.items()}),
    }


def _blocks(recorded: list[Document] | None) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(block["type"], block["size"], Mask.from_ids(block["numa"]))
        for block in recorded or ()
    )


def _devices(container: Document) -> dict[str, tuple[str, ...]]:
    devices: Document = container.get("devices") or {}
    return {resource: tuple(ids) for resource, ids in devices.items()}


def _hint(recorded: Document) -> Hint:
    mask = recorded["mask"]
    return Hint(None if mask is None else Mask.from_ids(mask).bits, preferred=recorded["preferred"])
