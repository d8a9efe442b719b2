"""Recorded state files of the kubelet against the ones we write, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.tools.kubelet_state.cpu import CPU_FORMAT, CpuStateDocument
from agent.tools.kubelet_state.format import StateForm, UnreadableStateFileError
from agent.tools.kubelet_state.memory import MEMORY_FORMAT, MemoryStateDocument
from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from tests.conformance.outcome import Case

_PATH: Final = Path("recorded")
_GATE: Final = "PodLevelResourceManagers"


def run_case(case: Case) -> Outcome:
    """Compare the text that is hashed, the file, and the file read and written again."""
    if case.get("version") == "v1":
        return _rejected(case["expected"]["file"])
    ours = _memory_file(case) if case["kind"] == "memory" else _cpu_file(case)
    if "panic" in case["expected"]:
        # The kubelet dies of pod entries without the gate; we say that the format has none.
        return Outcome.right_instead() if ours is None else Outcome.wrong("pod entries are lost")
    if ours is None:
        return Outcome.wrong("not written")
    text, *files = ours
    differences = []
    if text != case["expected"]["for_hash"]:
        differences.append(f"hashed {text!r}, expected {case['expected']['for_hash']!r}")
    for made, file in zip(("file", "file read and written again"), files, strict=True):
        if file != case["expected"]["file"]:
            differences.append(f"{made} {file!r}, expected {case['expected']['file']!r}")
    return Outcome.of(differences)


def _rejected(file: str) -> Outcome:
    """Return that a file of a kubelet up to 1.17 is rejected, which has container ids for pods."""
    try:
        read = CPU_FORMAT.read(file.encode(), _PATH)
    except UnreadableStateFileError:
        return Outcome.right_instead()
    return Outcome.wrong(f"read as {read}")


def _cpu_file(case: Case) -> tuple[str, str, str] | None:
    gate = (case.get("gates") or {}).get(_GATE, False)
    form = StateForm.WITH_BUDGETS if gate else StateForm.WITHOUT_BUDGETS
    pods = {uid: {"cpuSet": cpus} for uid, cpus in (case.get("pod_entries") or {}).items()}
    described = {
        "policyName": case["policy_name"],
        "defaultCpuSet": case["default"],
        "entries": case["entries"],
        "podEntries": pods,
    }
    document = msgspec.convert(described, CpuStateDocument)
    try:
        file = CPU_FORMAT.encode(document, form)
    except ValueError:
        return None
    again = CPU_FORMAT.write(CPU_FORMAT.read(file, _PATH), form)
    return CPU_FORMAT.hash_text(document, form), file.decode(), again.decode()


def _memory_file(case: Case) -> tuple[str, str, str]:
    gate = (case.get("gates") or {}).get(_GATE, False)
    form = StateForm.WITH_BUDGETS if gate else StateForm.WITHOUT_BUDGETS
    described = {
        "policyName": case["policy_name"],
        "machineState": {int(node): entry for node, entry in case["machine_state"].items()},
        "entries": case["mem_entries"],
        "podEntries": case["mem_pod_entries"],
    }
    document = msgspec.convert(described, MemoryStateDocument)
    file = MEMORY_FORMAT.encode(document, form)
    again = MEMORY_FORMAT.write(MEMORY_FORMAT.read(file, _PATH), form)
    return MEMORY_FORMAT.hash_text(document, form), file.decode(), again.decode()
