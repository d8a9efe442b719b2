"""What differs between the versions of Kubernetes, in one table.

In goes a version: the one of `kubernetesVersion` or of the kubelet beside the agent. Out come its
rules, as `version.rules.x`. A rule is a field that says what is so, with the pull request of
kubernetes/kubernetes or the KEP that made it so. The rules are made once, when this is imported.

Always true: the versions are in their order, each has its rules, and no other module names one. So
a version that is new is a member here with its meaning, and the rules that it changes.
docs/differences.md says what the agent makes of each.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable


class VersionRules(Struct, frozen=True):
    """The rules of one version; the defaults are those of the oldest."""

    #: The gate PodLevelResourceManagers is of the stage beta, not alpha (KEP-5526, 140573).
    pod_level_managers_are_beta: bool = False
    #: There is the gate PodLevelResourcesFixDefaulting: limits of a pod that are not stated follow
    #: from those of its containers where all state one (140514).
    pod_limits_follow_containers: bool = False
    #: The gate DisableCPUQuotaWithExclusiveCPUs cannot be switched off (139351).
    exclusive_cpus_never_have_quotas: bool = False
    #: In container scope, a container that shares its pod's budget is no request for pinned memory
    #: (138770).
    sharing_containers_pin_no_memory: bool = False
    #: `distribute-cpus-across-numa` keeps to all nodes of the chosen hint, since the topology
    #: manager chose them for other resources as well, not to the fewest with room (139456).
    distributing_keeps_all_nodes: bool = False
    #: `distribute-cpus-across-cores` takes a thread of each core in turn, not CPUs by their numbers
    #: (140766).
    spreading_goes_core_by_core: bool = False

    #: The gate MemoryQoS is of the stage beta, and on by default (KEP-2570).
    memory_qos_is_beta: bool = False
    #: The default of `memoryThrottlingFactor`; None slows down no container (KEP-2570).
    memory_throttling_factor: float | None = 0.9

    #: The gate PodsAPI is on by default (KEP-4188, 140286). Switched off, it has the socket answer
    #: errors.
    pods_api_is_on: bool = False
    #: Metrics of KEP-5526 belong to the subsystem `kubelet`, which their names say (138770).
    manager_metrics_name_kubelet: bool = False
    #: Over podresources a pod lists its budget and a container only what is its own; before, each
    #: container lists what it shares (KEP-5526, 138738).
    budgets_are_listed_at_pods: bool = False
    #: The state of the CPU and the memory manager is a text in `data` of their files, with the gate
    #: PodLevelResourceManagers on or off (139102).
    state_is_in_data: bool = False


_V1_36: Final = VersionRules()
_V1_37: Final = replace(
    _V1_36,
    pod_level_managers_are_beta=True,
    pod_limits_follow_containers=True,
    exclusive_cpus_never_have_quotas=True,
    sharing_containers_pin_no_memory=True,
    memory_qos_is_beta=True,
    memory_throttling_factor=None,
    pods_api_is_on=True,
    manager_metrics_name_kubelet=True,
    budgets_are_listed_at_pods=True,
    state_is_in_data=True,
)
_V1_38: Final = replace(
    _V1_37,
    distributing_keeps_all_nodes=True,
    spreading_goes_core_by_core=True,
)


class KubernetesVersion(StrEnum):
    """`kubernetesVersion`: whose rules hold where those of versions differ."""

    #: What is so under the version.
    rules: VersionRules
    #: What the version is, for the page of the configuration.
    meaning: str

    def __new__(cls, name: str, rules: VersionRules = _V1_36, meaning: str = "") -> Self:
        """Make a member; a call with a name alone looks the member up."""
        version = str.__new__(cls, name)
        version._value_ = name
        version.rules = rules
        version.meaning = meaning
        return version

    V1_36 = "v1.36", _V1_36, "the version whose decisions are recorded"
    V1_37 = "v1.37", _V1_37, "the newest that is released"
    V1_38 = "v1.38", _V1_38, "what was merged for it by September 2026; it is not released"


#: The oldest version whose rules are known.
OLDEST: Final = KubernetesVersion.V1_36
#: The newest version that is released and whose rules are known.
NEWEST: Final = KubernetesVersion.V1_37

#: Reads a rule: `lambda rules: rules.state_is_in_data`.
Rule: TypeAlias = "Callable[[VersionRules], object]"


def since(rule: Rule) -> KubernetesVersion:
    """Return the first version that has a rule; a version has it."""
    return next(version for version in KubernetesVersion if rule(version.rules))


def before(rule: Rule) -> KubernetesVersion:
    """Return the last version that does not have a rule yet; the oldest has it not."""
    without = takewhile(lambda version: not rule(version.rules), KubernetesVersion)
    return list(without)[-1]


def steps(rule: Rule) -> tuple[KubernetesVersion, ...]:
    """Return the oldest version, and each with another rule than the one before it."""
    found = [OLDEST]
    for version in KubernetesVersion:
        if rule(version.rules) != rule(found[-1].rules):
            found.append(version)
    return tuple(found)
