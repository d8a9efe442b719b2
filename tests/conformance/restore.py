"""Recorded starts of the kubelet on its own state files, against taking them over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.tools.kubelet_state.cpu import (
    CPU_FORMAT,
    CpuStateDocument,
    cpu_problems,
    with_lost_cpus,
)
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.files import KubeletState, encode_files
from agent.tools.kubelet_state.format import KubeletStateError
from agent.tools.kubelet_state.importing import take_over
from agent.tools.kubelet_state.memory import MEMORY_FORMAT, MemoryStateDocument
from sysfs.mask import Mask
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import machine_of
from tests.conformance.recorded_config import resolved_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.outcome import Case

_FILES: Final = {"cpu": "cpu_manager_state", "memory": "memory_manager_state"}


def run_case(case: Case) -> Outcome:
    """Compare whether the files are taken over, and what is then written back."""
    rules = EffectivePolicy(
        machine_of(case["topology"]), resolved_policy(_with_memory_policy(case)), MANAGERS
    )
    rejected = [error for key, error in case["expected"].items() if key.endswith("_start_error")]
    try:
        state = _read(case)
        taken = take_over(rules, state)
    except KubeletStateError as error:
        if rejected:
            return Outcome.equal()
        reason = _is_of_1_17(case) or _kubelet_accepts_wrongly(case)
        return _right_if(reason, f"rejected: {error}")
    if rejected:
        reason = _loads_without_gate(case, state) or _has_lost_cpus(rules, state, rejected)
        return _right_if(reason, f"taken over, expected {rejected}")
    ours = kubelet_state(rules, taken.ledger)
    if _inert_budget_left_out(case, ours):
        return Outcome.right_instead()
    return Outcome.of([*_state_differences(case, ours), *_file_differences(case, rules, ours)])


def _right_if(reason: bool, difference: str) -> Outcome:  # noqa: FBT001  # a verdict's own words
    return Outcome.right_instead() if reason else Outcome.wrong(difference)


def _with_memory_policy(case: Case) -> Case:
    """Return the case with the kubelet's default in place of a memory policy that is not given."""
    config = case["config"]
    policy = config["memory"]["policy"] or "None"
    return {**case, "config": {**config, "memory": {**config["memory"], "policy": policy}}}


def _read(case: Case) -> KubeletState:
    cpu, memory = (case.get(name) for name in _FILES.values())
    return KubeletState(
        cpu=None if cpu is None else CPU_FORMAT.read(cpu.encode(), Path("cpu")),
        memory=None if memory is None else MEMORY_FORMAT.read(memory.encode(), Path("memory")),
    )


def _is_of_1_17(case: Case) -> bool:
    """Return whether the CPU manager's file is a v1, of a kubelet up to 1.17, which is not read."""
    return bool(case["name"].startswith("restore/cpu/v1"))


def _kubelet_accepts_wrongly(case: Case) -> bool:
    """Return whether a state contradicts itself where the kubelet does not look.

    Two pods hold the same CPU, or budgets would be forgotten since the gate is off.
    """
    expected = case["expected"]["cpu"]
    allocated: list[int] = []
    for containers in expected["entries"].values():
        own: set[int] = set()
        for text in containers.values():
            own |= _ids(text)
        allocated.extend(own)
    forgotten = not case["gates"] and '"podEntries"' in (case.get("cpu_manager_state") or "")
    return forgotten or len(allocated) != len(set(allocated))


def _loads_without_gate(case: Case, state: KubeletState) -> bool:
    """Return whether the kubelet only minds that the gate was on when the file was written."""
    budgets = (state.cpu and state.cpu.pods) or (state.memory and state.memory.pods)
    if case["gates"] or budgets:
        return False
    with_gate: dict[str, bytes] = encode_files(state, pod_level=True)
    return any(case.get(name) == data.decode() for name, data in with_gate.items())


def _has_lost_cpus(rules: EffectivePolicy, state: KubeletState, rejected: list[str]) -> bool:
    """Return whether the kubelet minds CPUs that nobody has, and nothing else."""
    if state.cpu is None or not all("available CPUs" in error for error in rejected):
        return False
    found, lost = with_lost_cpus(rules, state.cpu)
    return bool(lost) and not cpu_problems(rules, found)


def _inert_budget_left_out(case: Case, ours: KubeletState) -> bool:
    """Return whether all that is missing are budgets without containers whose CPUs are all free."""
    expected = case["expected"]["cpu"]
    found = _cpu_state(ours)
    if next(_memory_differences(case, ours), None) is not None:
        return False
    missing = {
        uid: cpus
        for uid, cpus in expected["pod_entries"].items()
        if uid not in found["pod_entries"]
    }
    kept = {uid: cpus for uid, cpus in expected["pod_entries"].items() if uid not in missing}
    return (
        bool(missing)
        and {**expected, "pod_entries": kept} == found
        and not missing.keys() & expected["entries"].keys()
        and all(_ids(cpus) <= _ids(expected["default"]) for cpus in missing.values())
    )


def _state_differences(case: Case, ours: KubeletState) -> Iterator[str]:
    yield from _differ(case, "cpu", _cpu_state(ours))
    yield from _memory_differences(case, ours)


def _memory_differences(case: Case, ours: KubeletState) -> Iterator[str]:
    yield from _differ(case, "memory", _memory_state(ours))


def _differ(case: Case, kind: str, found: dict[str, Any]) -> Iterator[str]:
    expected = case["expected"].get(kind)
    if expected is not None and found != expected:
        yield f"{kind} {found}, expected {expected}"


def _file_differences(case: Case, rules: EffectivePolicy, ours: KubeletState) -> Iterator[str]:
    """Compare our files with those that the kubelet wrote again, or would write byte for byte."""
    pod_level = rules.policy.pod_level_managers
    written = encode_files(ours, pod_level=pod_level)
    for name in _FILES.values():
        theirs = case["expected"].get(f"{name}_after")
        if theirs is None:
            continue
        again = theirs != case.get(name)
        ours_text = written[name].decode()
        if ours_text != theirs and (again or _is_current(name, theirs, pod_level=pod_level)):
            yield f"{name} {ours_text}, expected {theirs}"


def _is_current(name: str, text: str, *, pod_level: bool) -> bool:
    """Return whether a file is byte for byte what the kubelet would write of its content now."""
    path, data = Path(name), text.encode()
    try:
        if name == _FILES["cpu"]:
            state = KubeletState(cpu=CPU_FORMAT.read(data, path))
        else:
            state = KubeletState(memory=MEMORY_FORMAT.read(data, path))
    except KubeletStateError:
        return False
    try:
        return encode_files(state, pod_level=pod_level) == {name: data}
    except ValueError:
        return False


def _cpu_state(state: KubeletState) -> dict[str, Any]:
    document = CPU_FORMAT.made(state.cpu) if state.cpu is not None else CpuStateDocument()
    pods = {uid: entry.cpuSet for uid, entry in (document.podEntries or {}).items()}
    return {"default": document.defaultCpuSet, "entries": document.entries, "pod_entries": pods}


def _memory_state(state: KubeletState) -> dict[str, Any]:
    document = (
        MEMORY_FORMAT.made(state.memory) if state.memory is not None else MemoryStateDocument()
    )
    return {
        "entries": to_builtins(document.entries),
        "machine_state": {
            str(node): entry for node, entry in to_builtins(document.machineState).items()
        },
        "pod_entries": to_builtins(document.podEntries),
    }


def _ids(text: str) -> set[int]:
    return set(Mask.parse(text))
