"""A small machine and the kubelet's files of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.managers.admission import admit
from agent.tools.kubelet_state.cpu import CPU_FORMAT, CpuState
from agent.tools.kubelet_state.files import KubeletState
from agent.tools.kubelet_state.format import StateForm
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

#: CPUs 0-15 on two nodes, CPU 0 reserved; the memory manager is off unless a test turns it on.
RULES: Final = make_rules(memory=False)
PATH: Final = Path("cpu_manager_state")


def cpu_state(
    default: str,
    containers: Mapping[str, Mapping[str, str]] | None = None,
    pods: Mapping[str, str] | None = None,
    policy: str = "static",
) -> CpuState:
    return CpuState(
        policy,
        Mask.parse(default),
        {
            uid: {name: Mask.parse(cpus) for name, cpus in sets.items()}
            for uid, sets in (containers or {}).items()
        },
        {uid: Mask.parse(cpus) for uid, cpus in (pods or {}).items()},
    )


def files(
    default: str,
    containers: Mapping[str, Mapping[str, str]] | None = None,
    pods: Mapping[str, str] | None = None,
) -> KubeletState:
    """Return a CPU state that went through its file; there is no memory file."""
    data = CPU_FORMAT.write(cpu_state(default, containers, pods), StateForm.WITH_BUDGETS)
    return KubeletState(cpu=CPU_FORMAT.read(data, PATH))


def admitted(rules: EffectivePolicy, *pods: Pod) -> Ledger:
    ledger = rules.empty_ledger()
    for asked in pods:
        decision = admit(rules, ledger, asked)
        assert decision.admitted, decision.rejection
        ledger = decision.ledger
    return ledger
