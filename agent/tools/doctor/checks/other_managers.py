"""Others on the host that decide on CPUs, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.tools.doctor.verdicts import HostCheck, Verdict
from agent.yaml import shown
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, HostFile

#: Programs that set cpusets of containers, by how their names begin.
CPU_MANAGERS: Final = (
    "nri-resource-policy-",
    "nri-plugin-balloons",
    "nri-plugin-topology-aware",
    "cri-resmgr",
    "dracpu",
    "dra-driver-cpu",
)
#: Runtimes start NRI plugins from here, `10-balloons` and the like.
PLUGIN_DIRECTORY: Final = "/opt/nri/plugins"
_TUNED: Final = ("cpu-partitioning", "realtime")
_STRICT: Final = "strict-cpu-reservation"


def other_manager_checks(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield the checks of the agent's own manifests, of other managers, and of isolated CPUs."""
    yield _manifest_check(config, facts)
    yield process_check(facts)
    yield _tuned_check(facts.tuned)
    yield _isolated_check(config, facts)


def _manifest_check(config: Config, facts: GatheredFacts) -> HostCheck:
    """Return whether the agent reads manifests of pods whose cgroups a kubelet would remove.

    With `agent.kubelet.enabled` it reads none: a configuration with both is rejected.
    """
    check, own = "manifest directory", config.static_pod_path
    if own is None:
        return HostCheck(check, Verdict.OK, "the agent reads none: staticPodPath is not set")
    if facts.kubelet.process is None:
        return HostCheck(check, Verdict.OK, f"staticPodPath is {own}, and no kubelet runs")
    found = f"staticPodPath is {own}: cgroups of its pods stand among the kubelet's, "
    found += "which removes cgroups of pods that it does not know"
    change = 'write `staticPodPath: ""` in the agent\'s configuration'
    return HostCheck(check, Verdict.ERROR, found, change)


def process_check(facts: GatheredFacts) -> HostCheck:
    """Return whether another program gives CPUs to containers."""
    check = "other managers of CPUs"
    found = [f"{one.name} (process {one.pid})" for one in facts.others]
    plugins = None if facts.runtime is None else facts.runtime.plugins
    if plugins is not None:
        found += [
            f"{plugins.path}/{name}"
            for name in plugins.names
            if name.partition("-")[2].startswith((*CPU_MANAGERS, "balloons", "topology-aware"))
        ]
    if found:
        text = f"two managers of cpusets on one host: {', '.join(found)}"
        return HostCheck(check, Verdict.ERROR, text, "remove it from this node, or the agent")
    if plugins is not None and plugins.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{plugins.path}: {plugins.problem}")
    return HostCheck(check, Verdict.OK, "none of those that are known runs")


def _tuned_check(file: HostFile) -> HostCheck:
    check = "tuned"
    if file.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {file.problem}")
    profile = (file.text or "").strip()
    if not profile.startswith(_TUNED):
        found = f"profile {shown(profile)} ({file.path})" if profile else f"{file.path} is absent"
        return HostCheck(check, Verdict.OK, found)
    found = f"profile {shown(profile)} in {file.path} isolates CPUs and moves processes"
    return HostCheck(check, Verdict.WARNING, found, "tuned-adm profile throughput-performance")


def _isolated_check(config: Config, facts: GatheredFacts) -> HostCheck:
    """Return whether shared containers could run on CPUs on which the kernel balances no load."""
    check, file = "isolated CPUs", facts.isolated
    if file.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {file.problem}")
    try:
        isolated = _mask(file) & _mask(facts.online)
    except ValueError as error:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {error}")
    strict = config.cpu_manager_policy_options.get(_STRICT) == "true"
    shared = isolated - (config.reserved_system_cpus or EMPTY) if strict else isolated
    if not shared:
        return HostCheck(check, Verdict.OK, f"none in the shared pool ({file.path})")
    found = f"{file.path} has CPUs {shared}, which are also in the shared pool: the kernel does "
    found += "not spread threads of shared containers over them"
    change = "remove isolcpus= from the kernel's command line and reboot; exclusive CPUs are kept "
    change += "free of others by cpusets"
    return HostCheck(check, Verdict.WARNING, found, change)


def _mask(file: HostFile) -> Mask:
    return Mask.parse((file.text or "").strip())
