"""The kubelet's state files: what is taken over is a ledger that holds, and can be removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.managers.admission import remove
from agent.managers.cpu.manager import exclusive_cpus
from agent.tools.kubelet_state.cpu import CPU_FILE, CPU_FORMAT
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.files import KubeletState, encode_files
from agent.tools.kubelet_state.format import (
    StateForm,
    UnfitStateError,
    UnreadableStateFileError,
    fnv1a_32,
)
from agent.tools.kubelet_state.importing import take_over
from agent.tools.kubelet_state.memory import MEMORY_FILE, MEMORY_FORMAT
from cgroupfs.names import Driver, Layout, Tier
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources
from tests.agent.tools.kubelet_state.machines import admitted
from tests.conformance.invariants import broken_invariants
from tests.fuzz.damage import damaged_bytes, damaged_document, damaged_text
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from random import Random

    from agent.yaml import Plain

#: Between the two files in an input; no JSON text holds it.
_BETWEEN: Final = b"\x1e"
_UIDS: Final = (
    "u-1", "u-2", "../../x", "..", ".", "/", "a/b", "a\x1b]0;x\x07", "n\nb", "\x00", "", " ", "-",
    "\u202ea", "\u00e9", "a_b", "A.B", "a..b", "a" * 128, "a" * 129, "a" * 5000, "pod", "kubepods",
    "x.slice", "11111111-2222-3333-4444-555555555555", "%n", "burstable",
)  # fmt: skip
_RULES: Final = make_rules(SMT)
_PODS: Final = (
    pod(app("a", guaranteed("cpu=2 memory=1Gi")), uid="u-1"),
    pod(
        init("i", guaranteed("cpu=1 memory=64Mi")),
        app("db", guaranteed("cpu=2 memory=1Gi")),
        app("web", resources("cpu=100m")),
        of_pod=guaranteed("cpu=4 memory=4Gi"),
        uid="u-2",
    ),
)
_FILES: Final = encode_files(kubelet_state(_RULES, admitted(_RULES, *_PODS)), pod_level=True)
_CPU: Final = _FILES[CPU_FILE]
_MEMORY: Final = _FILES[MEMORY_FILE]


def make_state_files(random: Random) -> bytes:
    """Draw both files, one or both of them damaged; without a checksum more is accepted."""
    if not random.randrange(4):
        return _with_hostile_uids(random)
    kind = random.randrange(3)
    cpu = _damaged(random, _CPU) if kind != 1 else _CPU
    memory = _damaged(random, _MEMORY) if kind != 0 else _MEMORY
    return _as_data(random, cpu) + _BETWEEN + _as_data(random, memory)


def _as_data(random: Random, file: bytes) -> bytes:
    """Return a file as a kubelet from v1.37 on writes it, or as it is."""
    if random.randrange(3):
        return file
    text = file.decode("utf-8", "replace")
    return json.dumps({"data": text, "dataChecksum": fnv1a_32(f"(string){text}")}).encode()


def _damaged(random: Random, data: bytes) -> bytes:
    if not random.randrange(4):
        return damaged_bytes(random, data).replace(_BETWEEN, b"")
    document: Plain = {**json.loads(data), "checksum": 0}
    return json.dumps(damaged_document(random, document, most=3)).encode()


def _with_hostile_uids(random: Random) -> bytes:
    """Return both files with other uids and names of containers, the same in both."""
    files = [{**json.loads(data), "checksum": 0} for data in (_CPU, _MEMORY)]
    texts = [json.dumps(document) for document in files]
    for name in ("u-1", "u-2", "db"):
        if random.randrange(2):
            other = json.dumps(damaged_text(random, _UIDS).decode("utf-8", "replace"))
            texts = [text.replace(f'"{name}"', other) for text in texts]
    return _BETWEEN.join(text.encode() for text in texts)


def check_state_files(data: bytes) -> bool:
    """Try both files of a kubelet, together."""
    of_cpu, _, of_memory = data.partition(_BETWEEN)
    try:
        cpu = CPU_FORMAT.read(of_cpu, Path("cpu"))
        memory = MEMORY_FORMAT.read(of_memory, Path("memory"))
    except UnreadableStateFileError as error:
        demand(error.problem, "rejected without a reason")
        return False
    for form in (StateForm.WITH_BUDGETS, StateForm.IN_DATA):
        again = CPU_FORMAT.read(CPU_FORMAT.write(cpu, form), Path("cpu"))
        demand(again == cpu, f"the CPU file, written as {form}, is another one")
        repeated = MEMORY_FORMAT.read(MEMORY_FORMAT.write(memory, form), Path("memory"))
        demand(repeated == memory, f"the memory file, written as {form}, is another one")
    try:
        ledger = take_over(_RULES, KubeletState(cpu, memory)).ledger
    except UnfitStateError as error:
        demand(error.reasons, "does not fit without a reason")
        return True
    # The files do not mark init containers, whose CPUs the others have later.
    broken = [line for line in broken_invariants(_RULES, ledger) if not line.endswith("overlap")]
    demand(not broken, f"{broken}")
    for uid, allocation in ledger.allocations.items():
        names = (uid, *(container.name for container in allocation.containers))
        demand(all(name.isprintable() for name in names), f"{names!a} are no names")
        for driver in Driver:
            Layout(driver).pod(uid, Tier(str(allocation.qos)))
    for uid in tuple(ledger.allocations):
        ledger = remove(_RULES, ledger, uid)
    demand(not exclusive_cpus(ledger), f"{exclusive_cpus(ledger)} are of no pod")
    return True


STATE_FILES: Final = Target(
    "kubelet-state", make_state_files, plain_check(check_state_files), weight=6
)
