"""Checks a CPU manager's state against the host, the configuration and itself.

The checks are those of the kubelet's start (v1.36, cpumanager/policy_static.go, validateState),
and those that it leaves out: pods that share CPUs, budgets that overlap the shared pool or leave
out their own containers, containers with a set of no CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.effective_policy import EffectivePolicy
    from agent.tools.kubelet_state.cpu_file import CpuState


def cpu_problems(rules: EffectivePolicy, state: CpuState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can."""
    configured = str(rules.policy.cpu.policy)
    if state.policy != configured:
        return (wrong_policy(state.policy, "cpuManagerPolicy", configured),)
    if not rules.static_cpus:
        pods = sorted({*state.containers, *state.pods})
        return tuple(f"pod {uid} has exclusive CPUs under policy {configured}" for uid in pods)
    if is_fresh(state):
        return ()
    return (
        *_gate(rules, state),
        *_reserved(rules, state),
        *_in_shared_pool(state),
        *_coverage(rules, state),
        *_allocated_twice(state),
        *_outside_budget(state),
        *_without_cpus(state),
    )


def wrong_policy(found: str, key: str, configured: str) -> str:
    """Return the message for a state of another policy than the configured one."""
    return (
        f"policyName is {found!r}, the configuration says {key}: {configured};"
        " configure the policy that the kubelet ran with"
    )


def is_fresh(state: CpuState) -> bool:
    """Return whether no CPU was ever allocated: the kubelet fills the shared pool at its start."""
    return not (state.default or state.containers or state.pods)


def inert_budgets(state: CpuState) -> frozenset[str]:
    """Return the pods that only have a budget whose CPUs are all free.

    A kubelet keeps such entries after a failed admission, or a restart; they bind nothing.
    """
    return frozenset(
        uid
        for uid, cpus in state.pods.items()
        if not state.containers.get(uid) and cpus <= state.default
    )


def _gate(rules: EffectivePolicy, state: CpuState) -> Iterator[str]:
    if state.pods and not rules.policy.pod_level_managers:
        named = ", ".join(sorted(state.pods))
        yield (
            f"podEntries: pod-level budgets of {named} need"
            " featureGates.PodLevelResourceManagers: true, as the kubelet had it"
        )


def _reserved(rules: EffectivePolicy, state: CpuState) -> Iterator[str]:
    reserved = rules.policy.cpu.reserved
    if rules.policy.cpu.options.strict_cpu_reservation:
        if both := reserved & state.default:
            yield (
                f"defaultCpuSet {state.default} contains the reserved CPUs {both}, which"
                " strict-cpu-reservation keeps from containers; the kubelet ran without it, or"
                " with other reservedSystemCPUs"
            )
    elif missing := reserved - state.default:
        yield (
            f"defaultCpuSet {_shown(state.default)} lacks the reserved CPUs {missing}; the kubelet"
            " ran with other reservedSystemCPUs, or with strict-cpu-reservation"
        )


def _in_shared_pool(state: CpuState) -> Iterator[str]:
    for uid, containers in sorted(state.containers.items()):
        for name, cpus in sorted(containers.items()):
            if both := cpus & state.default:
                yield f"container {name} of pod {uid} holds CPUs {both} of the shared pool"
    inert = inert_budgets(state)
    for uid, cpus in sorted(state.pods.items()):
        both = cpus & state.default
        if both and uid not in inert:
            yield f"the budget of pod {uid} contains CPUs {both} of the shared pool"


def _coverage(rules: EffectivePolicy, state: CpuState) -> Iterator[str]:
    """Compare all CPUs of the state with the allocatable CPUs of the host."""
    expected = rules.machine.cpus.all
    if rules.policy.cpu.options.strict_cpu_reservation:
        expected -= rules.policy.cpu.reserved
    found = state.default
    for uid in {*state.containers, *state.pods}:
        found |= _allocated(state, uid)
    if lost := expected - found - rules.policy.cpu.reserved:
        yield f"CPUs {lost} are online but neither shared nor allocated to a pod"
    if unknown := found - rules.machine.cpus.all:
        yield f"CPUs {unknown} are in the state but not online; bring them online first"
    elif strict := found - expected - state.default:
        yield f"CPUs {strict} are reserved for the system but allocated to pods"


def _allocated_twice(state: CpuState) -> Iterator[str]:
    """Yield a line for each pod with CPUs of an earlier pod."""
    first: dict[int, str] = {}
    taken = EMPTY
    for uid in sorted({*state.containers, *state.pods} - inert_budgets(state)):
        cpus = _allocated(state, uid)
        shared: dict[str, Mask] = {}
        for cpu in cpus & taken:
            shared[first[cpu]] = shared.get(first[cpu], EMPTY) | Mask.of(cpu)
        for other, both in shared.items():
            yield f"pods {other} and {uid} both hold CPUs {both}; end one of them"
        first.update(dict.fromkeys(cpus - taken, uid))
        taken |= cpus


def _outside_budget(state: CpuState) -> Iterator[str]:
    for uid, budget in sorted(state.pods.items()):
        for name, cpus in sorted(state.containers.get(uid, {}).items()):
            if outside := cpus - budget:
                yield (
                    f"container {name} of pod {uid} holds CPUs {outside} outside of its pod's"
                    f" budget {_shown(budget)}"
                )


def _without_cpus(state: CpuState) -> Iterator[str]:
    for uid, containers in sorted(state.containers.items()):
        for name, cpus in sorted(containers.items()):
            if not cpus:
                yield f"container {name} of pod {uid} holds a set of no CPUs; end the pod"


def _allocated(state: CpuState, uid: str) -> Mask:
    cpus = state.pods.get(uid, EMPTY)
    for own in state.containers.get(uid, {}).values():
        cpus |= own
    return cpus


def _shown(cpus: Mask) -> str:
    return str(cpus) or "(empty)"
