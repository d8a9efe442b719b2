"""Recorded sequences of admissions, removals and restarts against our own decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.config.model import ConfigError
from agent.managers.admission import admit, remove, start_container
from agent.managers.cpu.manager import (
    ALLOCATION_PER_NUMA,
    EXCLUSIVE_CPU_COUNT,
    SHARED_POOL_MILLICORES,
    cpu_samples,
    shared_pool,
)
from agent.managers.memory.state import free_memory, memory_charge
from agent.managers.metrics import DECISION_COUNTERS
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import pod_from_document
from agent.pods.model import MEMORY, ManifestError
from sysfs.mask import Mask
from tests.conformance.counters import right_counters
from tests.conformance.effective import with_defaults
from tests.conformance.following import followed, recorded_memory
from tests.conformance.invariants import NOTHING, Before, broken_invariants
from tests.conformance.memory_instead import (
    counts_init_memory,
    pins_no_shared_memory,
    rejected_for_own_demand,
    reuses_memory,
)
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import machine_of
from tests.conformance.recorded_config import (
    rejects_what_none_ignores,
    resolved_policy,
    start_is_rejected,
    start_problems,
)
from tests.conformance.valid_instead import (
    UNCORE_ALIGNED,
    caches_of_rejected,
    drops_budget,
    evenly_distributed,
    evenly_reserved,
    in_whole_cores,
    is_invalid,
    on_closer_nodes,
    on_fewer_sockets,
    reuses_cores,
    same_memory_in_all,
    valid_instead,
    valid_reservation,
    with_our_slices,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.topology.hint import Hint
    from agent.pods.model import Pod
    from tests.conformance.outcome import Case

    Step = Mapping[str, Any]

_SHARED_POOL = SHARED_POOL_MILLICORES.name
_EXCLUSIVE = EXCLUSIVE_CPU_COUNT.name
_PER_NODE = ALLOCATION_PER_NUMA.name
#: The gauges that are recorded.
_GAUGES = (_SHARED_POOL, _EXCLUSIVE, _PER_NODE)


_LABELS = {metric.name: metric.labels for metric in DECISION_COUNTERS}


@dataclass(slots=True)
class Replay:
    """Our own answers to the steps of one case, so far.

    `right` is set once our answer is another one for a reason that allows it; the next step is then
    taken from the kubelet's state. `parted` is set where that can be no ledger of ours (it gave
    something twice, or crashed): from there on only the invariants are checked. `rules_used` are
    the reasons that have names; two of them, which leave the ledgers alike, only change what is
    compared with. `gave_back` is set once the kubelet rejected a pod that had got something: it
    gives that back in another order than it was taken, ours is as if the pod had never been.
    `drift` is how much more the kubelet's gauges say than the CPUs that pods have.
    """

    case: Case
    rules: EffectivePolicy
    ledger: Ledger
    before: Before = NOTHING
    right: bool = False
    parted: bool = False
    gave_back: bool = False
    rules_used: set[str] = field(default_factory=set)
    drift: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case) -> Replay:
        """Start from the configuration and machine of a case."""
        rules = _rules(case)
        return cls(case, rules, rules.empty_ledger())

    def run(self) -> Outcome:
        """Take every step, comparing as long as the flags of the case allow."""
        expected = self.case["expected"]
        differences = self._start(expected["initial"])
        differences += self._gauge_differences(expected["initial"])
        for number, (step, answer) in enumerate(
            zip(self.case["steps"], expected["steps"], strict=False)
        ):
            if differences:
                break
            found = [*self._take(number, step, answer), *self._broken()]
            found += self._gauge_differences(answer, step)
            differences = [f"step {number} {step['op']}: {text}" for text in found]
        if differences:
            return Outcome.wrong(*differences)
        if self.right or self.parted or self.rules_used:
            return Outcome.right_instead(*self.rules_used)
        return Outcome.equal()

    def _start(self, expected: Step) -> list[str]:
        if self.rules.static_memory and self.rules.memory.overcommitted:
            self.parted = True  # the kubelet computes with unsigned numbers: it sees 16 EiB free
            return []
        differences = list(_initial_differences(self, expected))
        if not differences or not self._may_reserve(expected):
            return differences
        self.right = True
        if self.case.get("irregular"):
            self.rules_used.add("uneven host")
        cpu = replace(self.rules.policy.cpu, reserved=Mask.parse(expected["reserved"]))
        theirs = EffectivePolicy(self.rules.machine, replace(self.rules.policy, cpu=cpu), MANAGERS)
        self.rules = theirs
        self.parted = bool(list(_initial_differences(self, expected)))
        return []

    def _may_reserve(self, expected: Step) -> bool:
        if self.case.get("irregular"):
            return valid_reservation(self.rules, expected)
        return evenly_reserved(self.rules, expected)

    def _take(self, number: int, step: Step, answer: Step) -> list[str]:
        before = self.ledger
        if self._kubelet_is_wrong_from(number):
            self.parted = True
        match step["op"]:
            case "admit":
                return self._admit(number, step, answer, before)
            case "remove":
                self.ledger = remove(self.rules, self.ledger, step["uid"])
            case "start":
                self.ledger = start_container(
                    self.rules, self.ledger, step["uid"], step["container"]
                )
            case "restart":
                return self._restart(step, answer)
        return self._compare_state(answer)

    def _admit(self, number: int, step: Step, answer: Step, before: Ledger) -> list[str]:
        uid = step["pod"]["metadata"]["uid"]
        invalid = uid in self.case.get("api_invalid_pods", ())
        try:
            pod = self._pod(step)
        except ManifestError as error:
            if invalid or is_invalid(step["pod"]):
                return self._goes_on(before, None, answer)
            return [f"pod {uid} is rejected as invalid: {error}"]
        if invalid:
            return [f"pod {uid} is accepted, the API server would reject it"]
        decision = admit(self.rules, self.ledger, pod)
        self.ledger = decision.ledger
        if self.case.get("doc_deviation", {}).get("step") == number:
            if decision.admitted or rejected_for_own_demand(self.rules, pod, decision):
                return self._goes_on(before, pod, answer)
            return [f"rejected: {decision.rejection}"]
        return self._compare_decision(before, pod, decision, step, answer)

    def _pod(self, step: Step) -> Pod:
        return pod_from_document(
            step["pod"],
            step["pod"]["metadata"]["uid"],
            defaults=self.case.get("apply_defaults", False),
            pod_level=self.rules.policy.gates.pod_level_resources,
        )

    def _compare_decision(
        self, before: Ledger, pod: Pod, decision: Decision, step: Step, answer: Step
    ) -> list[str]:
        if self.parted or "panic" in answer:
            self.parted = True
            return []
        document = step["pod"]
        if self.case.get("apply_defaults"):
            document = with_defaults(document)
        right = self._corrected(before, decision, document, answer)
        differences = list(_decision_differences(self, decision, right))
        self.gave_back |= "state_before_gc" in answer
        if differences and self._may_differ(before, pod, decision, right):
            return self._goes_on(before, pod, answer)
        if differences:
            rule = self._rule_of(before, pod, decision, right, document)
            if rule:
                self.rules_used.add(rule)
                return self._goes_on(before, pod, answer)
        return differences

    def _goes_on(self, before: Ledger, pod: Pod | None, answer: Step) -> list[str]:
        """Go on from the kubelet's state after an answer of ours that is right; no differences."""
        self.right = True
        if self.parted or "panic" in answer:
            self.parted = True
            return []
        theirs = followed(self.rules, before, self.before, pod, answer)
        if theirs is None:
            self.parted = True
        else:
            self.ledger = theirs
        return []

    def _corrected(
        self, before: Ledger, decision: Decision, document: Mapping[str, Any], answer: Step
    ) -> Step:
        """Return the recorded answer as it would be without what only concerns its own pod."""
        right = with_our_slices(self.rules, decision, answer)
        if right is not answer:
            self.rules_used.add("cores of a budget")
        if decision.already_admitted:
            return right
        counters = right_counters(self.case["config"], document, answer)
        if counters != answer["metrics"]:
            self.rules_used.add("counters")
        caches = caches_of_rejected(self.rules, before, decision, answer)
        if caches is not None:
            rule, counters[UNCORE_ALIGNED] = caches
            self.rules_used.add(rule)
        return {**right, "metrics": counters}

    def _may_differ(self, before: Ledger, pod: Pod, decision: Decision, answer: Step) -> bool:
        """Return whether another answer is right here; the reasons stand in the documentation."""
        if decision.already_admitted:
            return decision.allocation == before.allocations[decision.uid]
        if self.case.get("irregular") and valid_instead(self.rules, before, pod, decision, answer):
            self.rules_used.add("uneven host")
            return True
        if evenly_distributed(self.rules, before, decision, answer):
            return True
        return self.gave_back and not _differs_beyond_memory(self, decision, answer)

    def _rule_of(
        self,
        before: Ledger,
        pod: Pod,
        decision: Decision,
        answer: Step,
        document: Mapping[str, Any],
    ) -> str | None:
        """Return the name of the rule by which another answer is right, None where none is."""
        rules = self.rules
        named: dict[str, Callable[[], bool]] = {
            "memory of init containers": lambda: counts_init_memory(
                rules, pod, decision, answer, document
            ),
            "memory of shared containers": lambda: pins_no_shared_memory(
                rules, pod, decision, answer, document
            ),
            "memory left by init containers": lambda: reuses_memory(
                rules, pod, decision, answer, document
            ),
            "dropped budget": lambda: drops_budget(rules, before, pod, decision),
            "whole cores": lambda: in_whole_cores(rules, before, pod, decision, answer),
            "cores of init containers": lambda: reuses_cores(rules, before, pod, decision, answer),
            "fewer sockets": lambda: on_fewer_sockets(rules, before, decision, answer),
            "closer nodes": lambda: on_closer_nodes(rules, decision, answer),
        }
        return next((name for name, is_right in named.items() if is_right()), None)

    def _compare_state(self, answer: Step) -> list[str]:
        if self.parted:
            return []
        differences = list(_state_differences(self, answer["state"]))
        if differences and self.gave_back and same_memory_in_all(self.ledger, answer["state"]):
            self.right = True
            self.ledger = self.ledger.with_part(
                MEMORY, recorded_memory(self.ledger, answer["state"])
            )
            return list(_state_differences(self, answer["state"]))
        return differences

    def _gauge_differences(self, answer: Step, step: Step | None = None) -> list[str]:
        """Compare the gauges; the kubelet's are off by what drifted at this step or before."""
        if self.parted or "metrics" not in answer:
            return []
        ours = _gauges(self)
        off = {
            name: value - ours.get(name, 0)
            for name, value in answer["metrics"].items()
            if name.startswith(_GAUGES)
        }
        drifting = () if step is None else self._drifting(step)
        self.drift |= {name: by for name, by in off.items() if name.startswith(drifting)}
        found = {name: by for name, by in off.items() if by != self.drift.get(name, 0)}
        return [f"gauges off by {found}, before by {self.drift}"] if found else []

    def _drifting(self, step: Step) -> tuple[str, ...]:
        """Return the gauges that the kubelet may let drift at a step.

        It changes them by what it gives out and takes back, so counts CPUs twice that serve again
        after an init container, and CPUs of averages that were not free. On a node it counts no
        budgets, after a restart of all their CPUs only those of exclusive containers.
        """
        if step["op"] == "restart":
            return (_EXCLUSIVE, _PER_NODE) if self._has_budgets() else ()
        spec = step.get("pod", {}).get("spec", {})
        if spec.get("initContainers") or (spec and self.case.get("irregular")):
            return _GAUGES
        return (_PER_NODE,) if spec and self._has_budgets() else ()

    def _has_budgets(self) -> bool:
        return any(each.cpus is not None for each in self.ledger.allocations.values())

    def _restart(self, step: Step, answer: Step) -> list[str]:
        changed = {key: step[key] for key in ("config", "gates", "topology") if key in step}
        self.case = {**self.case, **changed}
        self.drift = {}
        self.before = Before(frozenset(self.ledger.allocations), memory_charge(self.ledger))
        try:
            if changed:  # else theirs go on, which may reserve other CPUs than ours
                self.rules = _rules(self.case)
        except ConfigError as error:
            self.parted = True
            return [] if "start_error" in answer else [str(error)]
        if "start_error" in answer:
            self.parted = True
        return self._compare_state(answer)

    def _kubelet_is_wrong_from(self, number: int) -> bool:
        broken = self.case.get("invariant_violations")
        return broken is not None and number >= min(first["step"] for first in broken["first"])

    def _broken(self) -> list[str]:
        return broken_invariants(self.rules, self.ledger, self.before)


def run_case(case: Case) -> Outcome:
    """Replay one recorded sequence and compare every step."""
    if "start_error" in case["expected"]:
        return start_is_rejected(case)
    problems = start_problems(case)
    if problems:
        ignored = rejects_what_none_ignores(case, problems)
        return Outcome.right_instead() if ignored else Outcome.wrong(*problems)
    return Replay.of(case).run()


def _rules(case: Case) -> EffectivePolicy:
    return EffectivePolicy(machine_of(case["topology"]), resolved_policy(case), MANAGERS)


def _differs_beyond_memory(replay: Replay, decision: Decision, answer: Step) -> bool:
    """Return whether more differs than how a group's charge is spread over its nodes."""
    without = {**answer, "state": {**answer["state"], "mem_nodes": {}}}
    differs = any(_decision_differences(replay, decision, without))
    return differs or not same_memory_in_all(replay.ledger, answer["state"])


def _initial_differences(replay: Replay, expected: Step) -> Iterator[str]:
    if "reserved" in expected:
        yield from _differ("reserved", str(replay.rules.policy.cpu.reserved), expected["reserved"])
        yield from _differ(
            "reserved_physical",
            str(replay.rules.closed_physical_cpus),
            expected["reserved_physical"],
        )
        yield from _differ(
            "allocatable", str(replay.rules.assignable_cpus), expected["allocatable"]
        )
    yield from _state_differences(replay, expected["state"])


def _decision_differences(replay: Replay, decision: Decision, expected: Step) -> Iterator[str]:
    if decision.admitted != expected["admitted"]:
        yield (
            f"admitted {decision.admitted}, expected {expected['admitted']}:"
            f" {decision.rejection or decision.allocation} / {expected.get('message')}"
        )
        return
    if decision.rejection is not None:
        yield from _differ("reason", str(decision.rejection.reason), expected["reason"])
    if decision.allocation is not None:
        yield from _allocation_differences(replay, decision, decision.allocation, expected["pod"])
    yield from _state_differences(replay, expected["state"])
    if not decision.already_admitted:
        yield from _differ("counters", _counters(decision), _expected_counters(expected))


def _allocation_differences(
    replay: Replay, decision: Decision, allocation: PodAllocation, expected: Step
) -> Iterator[str]:
    yield from _differ("qos", allocation.qos.value, expected["qos"])
    yield from _differ("pod cpus", _text(allocation.cpus), expected["cpus"])
    yield from _differ("pod memory", _blocks(allocation.memory), expected["memory"])
    yield from _differ("pod quota_disabled", allocation.quota_disabled, expected["quota_disabled"])
    for container in allocation.containers:
        theirs = expected["containers"][container.name]
        ours = _container(replay, container)
        keys = [key for key in theirs if not (key == "hint" and decision.already_admitted)]
        for key in keys:
            answer = theirs[key] or None if key == "memory" else theirs[key]
            yield from _differ(f"container {container.name} {key}", ours[key], answer)


def _container(replay: Replay, allocation: ContainerAllocation) -> dict[str, object]:
    return {
        "cpus": _text(allocation.cpus),
        "effective": str(
            shared_pool(replay.rules, replay.ledger) if allocation.cpus is None else allocation.cpus
        )
        if replay.rules.static_cpus
        else "",
        "isolation": allocation.isolation.value,
        "quota_disabled": allocation.quota_disabled,
        "memory": _blocks(allocation.memory),
        "mems": ",".join(map(str, allocation.mems)),
        "hint": _hint(allocation.hint),
        "devices": {resource: list(ids) for resource, ids in allocation.devices.items()},
    }


def _state_differences(replay: Replay, expected: Step) -> Iterator[str]:
    if replay.rules.static_cpus:
        yield from _differ(
            "shared pool", str(shared_pool(replay.rules, replay.ledger)), expected["default"]
        )
    for node, theirs in expected.get("mem_nodes", {}).items():
        yield from _differ(f"memory of node {node}", _node_memory(replay, int(node)), theirs)


def _node_memory(replay: Replay, node: int) -> dict[str, object]:
    facts, charge = replay.rules.memory, memory_charge(replay.ledger)[node]
    return {
        "assignments": charge.assignments,
        "cells": list(charge.cells),
        "memory": {
            kind: [
                free_memory(facts, memory_charge(replay.ledger), kind)[node],
                charge.reserved.get(kind, 0),
            ]
            for kind in facts.allocatable[node]
        },
    }


def _gauges(replay: Replay) -> dict[str, float]:
    return {
        _sample(each.metric.name, each.metric.labels, each.labels): each.value
        for each in cpu_samples(replay.rules, replay.ledger)
    }


def _counters(decision: Decision) -> dict[str, int]:
    return {
        _sample(name, _LABELS[name], labels): value
        for (name, labels), value in decision.counters.items()
        if value
    }


def _sample(name: str, names: tuple[str, ...], labels: tuple[str, ...]) -> str:
    if not names:
        return name
    pairs = sorted(zip(names, labels, strict=True))
    return name + "{" + ",".join(f"{key}={value}" for key, value in pairs) + "}"


def _expected_counters(expected: Step) -> dict[str, int]:
    return {
        name: value
        for name, value in expected["metrics"].items()
        if not name.startswith(_GAUGES) and value
    }


def _hint(hint: Hint) -> dict[str, object]:
    nodes = None if hint.nodes is None else list(Mask(hint.nodes))
    return {"mask": nodes, "preferred": hint.preferred}


def _blocks(blocks: tuple[MemoryBlock, ...]) -> list[dict[str, object]] | None:
    if not blocks:
        return None
    return [
        {"type": block.type, "size": block.size, "numa": list(block.nodes)}
        for block in sorted(blocks, key=lambda block: block.type)
    ]


def _text(cpus: Mask | None) -> str | None:
    return None if cpus is None else str(cpus)


def _differ(what: str, ours: object, theirs: object) -> Iterator[str]:
    if ours != theirs:
        yield f"{what}: {ours!r}, expected {theirs!r}"
