"""The feature gates of Kubernetes that change anything here: `featureGates`.

In goes what a configuration says of gates, and the version of Kubernetes whose rules hold: stages
and defaults of gates are those of the version. Out come the gates as values, and what is wrong with
them. A gate that is not in the table is accepted and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.policy import FeatureGates
from agent.managers.versions import NEWEST, KubernetesVersion, before, since
from agent.yaml import guesses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.versions import Rule, VersionRules


class GateStage(StrEnum):
    """How mature a feature is; AllAlpha and AllBeta switch whole stages."""

    ALPHA = "alpha"
    BETA = "beta"
    DEPRECATED = "deprecated"


class Gate(Struct, frozen=True):
    """A gate that changes something here."""

    #: The field of `FeatureGates` with its value and default; "" for a gate that changes no
    #: decision.
    field: str
    #: The stage in the oldest version.
    stage: GateStage
    meaning: str
    #: True of the versions that have the gate; None: all have it.
    came: Rule | None = None
    #: True of the versions in which the gate is of stage beta, where `stage` is alpha.
    is_beta: Rule | None = None
    #: True of the versions in which the gate cannot be switched off.
    is_locked: Rule | None = None

    def is_in(self, version: KubernetesVersion) -> bool:
        """Return whether a version of Kubernetes has the gate."""
        return self.came is None or bool(self.came(version.rules))

    def stage_in(self, version: KubernetesVersion) -> GateStage:
        """Return how mature the feature is in a version of Kubernetes."""
        is_beta = self.is_beta is not None and self.is_beta(version.rules)
        return GateStage.BETA if is_beta else self.stage

    def is_on(self, gates: FeatureGates) -> bool:
        """Return whether the gate is on."""
        return getattr(gates, self.field) is True


def _memory_qos_is_beta(rules: VersionRules) -> bool:
    return rules.memory_qos_is_beta


POD_LEVEL_RESOURCES: Final = "PodLevelResources"
POD_LEVEL_RESOURCE_MANAGERS: Final = "PodLevelResourceManagers"
FIX_DEFAULTING: Final = "PodLevelResourcesFixDefaulting"
#: Changes nothing here, where an empty `spec.resources` always counts as none.
FIX_QOS_CLASS: Final = "PodLevelResourcesFixKubeletQOSClass"
ALPHA_OPTIONS: Final = "CPUManagerPolicyAlphaOptions"
BETA_OPTIONS: Final = "CPUManagerPolicyBetaOptions"
MEMORY_QOS: Final = "MemoryQoS"

#: The gates that change a decision.
GATES: Final[Mapping[str, Gate]] = {
    POD_LEVEL_RESOURCES: Gate("pod_level_resources", GateStage.BETA, "spec.resources of pods"),
    POD_LEVEL_RESOURCE_MANAGERS: Gate(
        "pod_level_resource_managers",
        GateStage.ALPHA,
        "exclusive parts of spec.resources (KEP-5526)",
        is_beta=lambda rules: rules.pod_level_managers_are_beta,
    ),
    FIX_DEFAULTING: Gate(
        "pod_level_resources_fix_defaulting",
        GateStage.BETA,
        "limits of spec.resources follow from those of all containers",
        came=lambda rules: rules.pod_limits_follow_containers,
    ),
    "DisableCPUQuotaWithExclusiveCPUs": Gate(
        "disable_cpu_quota_with_exclusive_cpus",
        GateStage.DEPRECATED,
        "no CPU quota on exclusive CPUs; cannot be switched off from "
        f"{since(lambda rules: rules.exclusive_cpus_never_have_quotas)} on",
        is_locked=lambda rules: rules.exclusive_cpus_never_have_quotas,
    ),
    ALPHA_OPTIONS: Gate(
        "cpu_manager_policy_alpha_options", GateStage.ALPHA, "see cpuManagerPolicyOptions"
    ),
    BETA_OPTIONS: Gate(
        "cpu_manager_policy_beta_options", GateStage.BETA, "see cpuManagerPolicyOptions"
    ),
}
#: Changes what is written into cgroups; it is on by default where it is beta.
_MEMORY_QOS_GATE: Final = Gate(
    "",
    GateStage.ALPHA,
    "memoryReservationPolicy and memoryThrottlingFactor; default: true, and false with "
    f"kubernetesVersion {before(_memory_qos_is_beta)}",
    is_beta=_memory_qos_is_beta,
)
_WHOLE_STAGES: Final = {"AllAlpha": GateStage.ALPHA, "AllBeta": GateStage.BETA}

#: Every gate that changes anything here.
OWN_GATES: Final = (*GATES, MEMORY_QOS, *_WHOLE_STAGES)

#: Features that graduated: they are on and stay on.
LOCKED_ON: Final = frozenset(
    (
        *("CPUManager", "CPUManagerPolicyOptions", "DevicePluginCDIDevices", "MemoryManager"),
        *("SidecarContainers", "TopologyManager", "TopologyManagerPolicyOptions"),
    )
)


def gates_of(gates: Mapping[str, bool], version: KubernetesVersion = NEWEST) -> FeatureGates:
    """Return the gates that change a decision."""
    default = FeatureGates()
    return FeatureGates(
        **{
            gate.field: _is_on(gates, name, gate, version, default=gate.is_on(default))
            for name, gate in GATES.items()
        }
    )


def memory_qos_is_on(gates: Mapping[str, bool], version: KubernetesVersion) -> bool:
    """Return whether the gate of Memory QoS is on."""
    default = version.rules.memory_qos_is_beta
    return _is_on(gates, MEMORY_QOS, _MEMORY_QOS_GATE, version, default=default)


def _is_on(
    gates: Mapping[str, bool], name: str, gate: Gate, version: KubernetesVersion, *, default: bool
) -> bool:
    # 1. A version that does not have the gate has it off.
    if not gate.is_in(version):
        return False
    # 2. A gate that is named is as named; else its stage counts, where named; else the default.
    of_stage = {stage: gates[whole] for whole, stage in _WHOLE_STAGES.items() if whole in gates}
    return gates.get(name, of_stage.get(gate.stage_in(version), default))


def gate_problems(
    gates: Mapping[str, bool], version: KubernetesVersion = NEWEST
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the gates that were set, as (gate, message)."""
    # 1. The version has the gate, and the gate can be switched so.
    for name, enabled in gates.items():
        if name in LOCKED_ON and not enabled:
            yield name, "this feature has graduated and cannot be switched off; remove it"
        gate = GATES.get(name)
        if gate is None:
            continue
        if gate.came is not None and not gate.is_in(version):
            came = f"it came with Kubernetes {since(gate.came)}"
            yield name, f"{came}, and kubernetesVersion is {version}; remove one of the two"
        elif gate.is_locked is not None and gate.is_locked(version.rules) and not enabled:
            found = f"it cannot be switched off from Kubernetes {since(gate.is_locked)} on"
            yield name, f"{found}; remove it, or write kubernetesVersion: {before(gate.is_locked)}"
    # 2. Gates that build on PodLevelResources are off without it. Those that are on by default
    #    have no effect then, and need not be switched off.
    resolved = gates_of(gates, version)
    if resolved.pod_level_resources:
        return
    for name, is_on in (
        (POD_LEVEL_RESOURCE_MANAGERS, resolved.pod_level_resource_managers),
        (FIX_DEFAULTING, gates.get(FIX_DEFAULTING, False)),
        (FIX_QOS_CLASS, gates.get(FIX_QOS_CLASS, False)),
    ):
        if is_on:
            needs = f"it needs {POD_LEVEL_RESOURCES}, which is off"
            yield name, f"{needs}; switch both on, or this one off"


#: How alike an unknown name and one of ours are, from 0 to 1, where a hint names ours. One letter
#: too much in the shortest leaves 0.93. TopologyManagerPolicyAlphaOptions, a gate of Kubernetes, is
#: 0.85 like CPUManagerPolicyAlphaOptions.
_MISTYPED: Final = 0.9


def gate_notes(gates: Mapping[str, bool]) -> Iterator[str]:
    """Yield a line for each gate that changes nothing here; one that looks mistyped has a hint.

    A gate of Kubernetes that changes nothing here and a name that no version has get the same line:
    the set of gates differs by version.
    """
    guess = guesses(_MISTYPED)
    for name in gates:
        if name not in OWN_GATES:
            near = "" if name in LOCKED_ON else guess(name, OWN_GATES)
            yield f"featureGates.{name} changes nothing here{near}"


def gate_meanings() -> dict[str, str]:
    """Return what each of `OWN_GATES` does, with its default."""
    default = FeatureGates()
    meanings = {}
    for name, gate in GATES.items():
        came = "" if gate.came is None else f" (from {since(gate.came)} on)"
        meanings[name] = f"{gate.meaning}{came}; default: {str(gate.is_on(default)).lower()}"
    meanings[MEMORY_QOS] = _MEMORY_QOS_GATE.meaning
    for whole, stage in _WHOLE_STAGES.items():
        meanings[whole] = f"switches the gates of stage {stage} that are not named"
    return meanings
