"""Recorded state files of the kubelet against the ones we write, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.tools.kubelet_state.cpu import (
    CpuFileVersion,
    CpuStateDocument,
    cpu_hash_text,
    encode_cpu_document,
    read_cpu_state,
    write_cpu_state,
)
from agent.tools.kubelet_state.format import UnreadableStateFileError
from agent.tools.kubelet_state.memory import (
    MemoryFileVersion,
    MemoryStateDocument,
    encode_memory_document,
    memory_hash_text,
    read_memory_state,
    write_memory_state,
)
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
        read = read_cpu_state(file.encode(), _PATH)
    except UnreadableStateFileError:
        return Outcome.right_instead()
    return Outcome.wrong(f"read as {read}")


def _cpu_file(case: Case) -> tuple[str, str, str] | None:
    gate = (case.get("gates") or {}).get(_GATE, False)
    version = CpuFileVersion.V3 if gate else CpuFileVersion.V2
    pods = {uid: {"cpuSet": cpus} for uid, cpus in (case.get("pod_entries") or {}).items()}
    described = {
        "policyName": case["policy_name"],
        "defaultCpuSet": case["default"],
        "entries": case["entries"],
        "podEntries": pods,
    }
    document = msgspec.convert(described, CpuStateDocument)
    try:
        file = encode_cpu_document(document, version)
    except ValueError:
        return None
    again = write_cpu_state(read_cpu_state(file, _PATH), version)
    return cpu_hash_text(document, version), file.decode(), again.decode()


def _memory_file(case: Case) -> tuple[str, str, str]:
    gate = (case.get("gates") or {}).get(_GATE, False)
    version = MemoryFileVersion.V2 if gate else MemoryFileVersion.V1
    described = {
        "policyName": case["policy_name"],
        "machineState": {int(node): entry for node, entry in case["machine_state"].items()},
        "entries": case["mem_entries"],
        "podEntries": case["mem_pod_entries"],
    }
    document = msgspec.convert(described, MemoryStateDocument)
    file = encode_memory_document(document, version)
    again = write_memory_state(read_memory_state(file, _PATH), version)
    return memory_hash_text(document, version), file.decode(), again.decode()
