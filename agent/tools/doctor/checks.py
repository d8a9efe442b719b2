"""All checks of a host, in the order in which they are read, and those that decide on a start.

Here are those of cgroups and of others that decide on CPUs; `kubelet` and `runtime` have the rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.config.isolation import PartitionMode
from agent.config.model import CgroupDriver
from agent.managers.policy import CpuManagerPolicy, IsolationMode, IsolcpusUse
from agent.runtimes import KUBELET, running_kubelet
from agent.tools.doctor.facts import HostCheck, Verdict
from agent.tools.doctor.kernel import huge_page_check, work_check
from agent.tools.doctor.kubelet import (
    exclusive_checks,
    flag_of,
    manager_checks,
    reservation_check,
    settings_of,
    source_checks,
)
from agent.tools.doctor.runtime import allowed_annotations, runtime_checks
from agent.tools.doctor.version import rules_check
from agent.versions import ReportedVersion
from agent.yaml import shown
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import (
        CgroupControllers,
        CgroupFacts,
        GatheredFacts,
        HostFile,
        KubeletFiles,
    )
    from agent.tools.doctor.kubelet import KubeletSettings


def examine(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield every check of a host; a pure function of configuration and facts.

    On a host that has no kubelet, or whose kubelet the agent ignores, they are those of an agent
    that manages the host's pods alone.
    """
    settings = settings_of(facts.kubelet)
    yield _mode_check(config, facts.kubelet)
    if is_alone(config, facts):
        yield version_check(facts.cgroups)
        yield _pool_check(config, alone=True)
        yield from other_manager_checks(config, facts)
        return
    yield _directory_check(facts.kubelet)
    yield from manager_checks(facts.kubelet, settings)
    yield reservation_check(config, facts.kubelet, settings)
    yield from cgroup_checks(config, facts.cgroups, settings)
    if facts.kernel is not None:
        yield huge_page_check(facts.kernel)
    yield _pool_check(config, alone=False)
    if facts.runtime is not None:
        yield rules_check(config, _reported(facts))
        yield from runtime_checks(facts.runtime)
    yield from source_checks(facts, settings)
    yield from exclusive_checks(config, facts)
    yield from other_manager_checks(config, facts)


def is_alone(config: Config, facts: GatheredFacts) -> bool:
    """Return whether the agent is to work without a kubelet."""
    files = facts.kubelet
    here = files.process is not None or files.config.text is not None or bool(files.socket)
    return not config.beside_kubelet and (config.agent.kubelet.ignored or not here)


def examine_for_start(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield the checks that an agent beside a kubelet makes at its start.

    With an error of these it must not run; other checks are about what it could do better.
    """
    settings = settings_of(facts.kubelet)
    yield _directory_check(facts.kubelet)
    yield from manager_checks(facts.kubelet, settings)
    yield reservation_check(config, facts.kubelet, settings)
    yield driver_check(config, facts.cgroups, settings)
    yield process_check(facts)
    if config.kubernetes_version is None:
        yield rules_check(config, _reported(facts))


def _mode_check(config: Config, kubelet: KubeletFiles) -> HostCheck:
    check = "beside the kubelet"
    if config.beside_kubelet:
        return HostCheck(check, Verdict.OK, "agent.kubelet.enabled is true")
    found = "agent.kubelet.enabled is false"
    change = "write `agent: {kubelet: {enabled: true}}` in the agent's configuration"
    process, runs = kubelet.process, f"a kubelet listens on {kubelet.socket}"
    if process is None and not kubelet.socket:
        if kubelet.config.text is None:
            alone = f"{found} and no kubelet is here: the agent alone manages pods"
            return HostCheck(check, Verdict.OK, alone)
        return HostCheck(check, Verdict.WARNING, found, change)
    if process is not None:
        runs = running_kubelet(process.name, process.pid)
    if config.agent.kubelet.ignored:
        found = f"{runs} and agent.kubelet.ignored is true"
        change = "reserve there all CPUs but the agent's (reservedSystemCPUs), and here its own"
        return HostCheck(check, Verdict.WARNING, found, change)
    if process is None or process.name != KUBELET:
        change += ", or `ignored: true` where it has none"
    found += f" and {runs}: it removes cgroups of pods that it does not know"
    return HostCheck(check, Verdict.ERROR, found, change)


def _reported(facts: GatheredFacts) -> ReportedVersion | None:
    """Return the kubelet's version by its program, else by its package; None: neither was asked."""
    asked, runtime = facts.kubelet_version, facts.runtime
    package = "" if runtime is None else runtime.packages.get("kubelet", "")
    if package and not (asked and asked.version):
        return ReportedVersion("kubelet", package, "the package kubelet")
    return asked


def _directory_check(kubelet: KubeletFiles) -> HostCheck:
    check = "kubelet directory"
    if kubelet.process is None:
        runs = "the kubelet's process is not known" if kubelet.socket else "no kubelet runs"
        found = f"{kubelet.directory} (agent.kubelet.directory); {runs}"
        return HostCheck(check, Verdict.OK, found)
    named = flag_of(kubelet.process.arguments, "root-dir")
    if named is None or named.rstrip("/") == kubelet.directory:
        return HostCheck(check, Verdict.OK, f"{kubelet.directory} (agent.kubelet.directory)")
    found = f"agent.kubelet.directory is {kubelet.directory}, but the kubelet (process "
    found += f"{kubelet.process.pid}) has --root-dir={named}"
    change = f"write `agent: {{kubelet: {{directory: {named}}}}}` in the agent's configuration"
    return HostCheck(check, Verdict.ERROR, found, change)


_CPUSET = "cpuset"
_KEY = "cgroupDriver"


def cgroup_checks(
    config: Config, cgroups: CgroupFacts, settings: KubeletSettings
) -> Iterator[HostCheck]:
    """Yield the checks of cgroup v2, of the drivers and of the controller cpuset."""
    version = version_check(cgroups)
    yield version
    if version.verdict is Verdict.OK:
        yield driver_check(config, cgroups, settings)
        yield _cpuset_check(cgroups)


def version_check(cgroups: CgroupFacts) -> HostCheck:
    """Return whether the host has cgroup v2 with the controller cpuset."""
    check, root = "cgroup v2", cgroups.root
    file = f"{cgroups.mount}/cgroup.controllers"
    if root.controllers is None:
        if root.problem:
            return HostCheck(check, Verdict.UNKNOWN, f"{file}: {root.problem}")
        change = "add `systemd.unified_cgroup_hierarchy=1` to the kernel's command line and reboot"
        return HostCheck(check, Verdict.ERROR, f"{file} is not there", change)
    if _CPUSET not in root.controllers:
        found = f"{file} does not list cpuset"
        change = "remove `cgroup_disable=cpuset` from the kernel's command line, or what mounts "
        change += "cpuset as cgroup v1 (`grep cpuset /proc/mounts`, such as cset), and reboot; in "
        change += "a container, have the controller delegated to it"
        return HostCheck(check, Verdict.ERROR, found, change)
    return HostCheck(check, Verdict.OK, f"{file} lists cpuset")


def driver_check(config: Config, cgroups: CgroupFacts, settings: KubeletSettings) -> HostCheck:
    """Return whether the agent looks for pods' cgroups where the kubelet makes them."""
    check, own = "cgroup driver", str(config.cgroup_driver)
    there = {
        driver: parts[0].path
        for driver, parts in (("systemd", cgroups.systemd), ("cgroupfs", cgroups.cgroupfs))
        if parts and parts[0].controllers is not None
    }
    setting, later = settings.effective(_KEY), None
    if len(there) == 1:
        ((driver, path),) = there.items()
        found = f"the kubelet's is {driver} ({cgroups.mount}/{path} is there)"
        bad = Verdict.ERROR
        if setting is not None and setting.value != driver:
            later = setting
            found = f"now {found}, at its next start {shown(later.value)} ({later.source}) unless "
            found += "the runtime names another"
    elif setting is not None:
        # The runtime's own wins over this one (KubeletCgroupDriverFromCRI), so it proves nothing.
        driver, bad = setting.value, Verdict.WARNING
        found = f"the kubelet's is {shown(driver)} ({setting.source})"
    else:
        seen = " and ".join(there.values()) or "no cgroup of pods"
        found = f"the kubelet's is not known: {seen} at {cgroups.mount}, no {_KEY} configured"
        return HostCheck(check, Verdict.UNKNOWN, found, settings.change(_KEY, "systemd"))
    if driver != own:
        change = f"write `{_KEY}: {driver}` in the agent's configuration"
        return HostCheck(check, bad, f"{found}, the agent's is {own}", change)
    if later is not None:
        return HostCheck(check, Verdict.WARNING, f"{found}; the agent's is {own}", later.to(own))
    if driver != CgroupDriver.SYSTEMD:
        found = f"{found}, as the agent's is; beside a kubelet the agent was tried with systemd"
        change = settings.change(_KEY, "systemd")
        change += ", and in the agent's and the runtime's configuration as well"
        return HostCheck(check, Verdict.WARNING, found, change)
    return HostCheck(check, Verdict.OK, f"{found}, as the agent's is")


def _cpuset_check(cgroups: CgroupFacts) -> HostCheck:
    check = "cpuset of pods"
    parts = [one for one in (*cgroups.systemd, *cgroups.cgroupfs) if one.controllers is not None]
    unreadable = [one for one in (*cgroups.systemd, *cgroups.cgroupfs) if one.problem]
    if unreadable:
        found = f"{_file(cgroups, unreadable[0])}: {unreadable[0].problem}"
        return HostCheck(check, Verdict.UNKNOWN, found)
    if not parts:
        found = f"{cgroups.mount} has no cgroup of pods yet; the kubelet makes it at its start"
        return HostCheck(check, Verdict.UNKNOWN, found)
    lacking = [one for one in parts if _CPUSET not in (one.controllers or ())]
    if not lacking:
        named = ", ".join(one.path for one in parts)
        return HostCheck(check, Verdict.OK, f"available in {named}")
    found = f"{_file(cgroups, lacking[0])} does not list cpuset"
    if lacking[0] is parts[0]:
        change = "restart the kubelet, which sets AllowedCPUs of kubepods.slice at its start"
    else:
        change = "start the agent beside the kubelet, which sets AllowedCPUs there"
    return HostCheck(check, Verdict.WARNING, found, change)


def _pool_check(config: Config, *, alone: bool) -> HostCheck:
    """Return what it costs that exclusive CPUs change hands."""
    check = "shared pool"
    if alone and config.agent.shared_cgroup:
        found = "is written once for all pods (agent.sharedCgroup)"
        return HostCheck(check, Verdict.OK, found)
    each = "is written for each Guaranteed pod without CPUs of its own"
    if not alone:
        return HostCheck(check, Verdict.OK, f"{each}: the kubelet makes their cgroups")
    change = "leave agent.sharedCgroup out of the agent's configuration"
    return HostCheck(check, Verdict.WARNING, f"{each}: agent.sharedCgroup is false", change)


def _file(cgroups: CgroupFacts, one: CgroupControllers) -> str:
    return f"{cgroups.mount}/{one.path}/cgroup.controllers"


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
    """Yield the checks of manifests, of other managers, of isolated CPUs and of the kernel."""
    yield _manifest_check(config, facts)
    yield process_check(facts)
    yield _tuned_check(facts.tuned)
    yield from _crio_checks(config, facts)
    yield _isolated_check(config, facts)
    if facts.kernel is not None:
        yield work_check(facts.kernel)
    yield _affinity_check(config, facts.release)


def _manifest_check(config: Config, facts: GatheredFacts) -> HostCheck:
    """Return whether the agent reads manifests of pods whose cgroups a kubelet would remove.

    With `agent.kubelet.enabled` it reads none: a configuration with both is rejected.
    """
    check, own = "manifest directory", config.static_pod_path
    if own is None:
        return HostCheck(check, Verdict.OK, "the agent reads none: staticPodPath is not set")
    process = facts.kubelet.process
    if process is None:
        return HostCheck(check, Verdict.OK, f"staticPodPath is {own}, and no kubelet runs")
    if process.name != KUBELET and config.agent.kubelet.ignored:
        found = f"staticPodPath is {own}, and {running_kubelet(process.name, process.pid)}"
        return HostCheck(check, Verdict.WARNING, found, "use another cgroupRoot than the kubelet's")
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


def _crio_checks(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield what CRI-O and the agent both isolate: each undoes what the other did."""
    allowed = {} if facts.runtime is None else allowed_annotations(facts.runtime.crio)
    isolation = config.agent.isolation
    for item, annotation, is_on in (
        ("interrupts", "irq-load-balancing.crio.io", isolation.interrupts != IsolationMode.NEVER),
        ("partitions", "cpu-load-balancing.crio.io", isolation.partitions != PartitionMode.NEVER),
    ):
        if is_on and annotation in allowed:
            found = f"CRI-O sets them for pods with {annotation} (allowed_annotations in "
            found += f"{allowed[annotation]}), and agent.isolation.{item} is on"
            change = f"remove the annotation there, or write `{item}: never` in agent.isolation"
            yield HostCheck(f"{item} of pods", Verdict.WARNING, found, change)


def _isolated_check(config: Config, facts: GatheredFacts) -> HostCheck:
    """Return whether shared containers could run on CPUs on which the kernel balances no load."""
    check, file = "isolated CPUs", facts.isolated
    if file.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {file.problem}")
    try:
        isolated = _mask(file) & _mask(facts.online)
    except ValueError as error:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {error}")
    static = config.cpu_manager_policy is CpuManagerPolicy.STATIC
    if isolated and static and config.agent.isolated_cpus is IsolcpusUse.EXCLUSIVE:
        found = f"{isolated} are for exclusive use (agent.isolatedCPUs); programs pin their threads"
        return HostCheck(check, Verdict.OK, found)
    strict = config.cpu_manager_policy_options.get(_STRICT) == "true"
    shared = isolated - (config.reserved_system_cpus or EMPTY) if strict else isolated
    if not shared:
        return HostCheck(check, Verdict.OK, f"none in the shared pool ({file.path})")
    found = f"{file.path} has CPUs {shared}, which are also in the shared pool: the kernel does "
    found += "not spread threads of shared containers over them"
    change = "remove isolcpus= from the kernel's command line and reboot: exclusive CPUs are kept "
    change += "free of others by cpusets; or set agent.isolatedCPUs: exclusive"
    return HostCheck(check, Verdict.WARNING, found, change)


#: "sched: Always preserve the user requested cpumask" (commit 8f9ea86fdf99) came with it.
_KEEPS_AFFINITY: Final = (6, 2)


def _affinity_check(config: Config, file: HostFile) -> HostCheck:
    """Return whether services keep the CPUs that they chose when their slice is narrowed."""
    check = "affinity of services"
    if not config.agent.isolation.host_slices:
        return HostCheck(check, Verdict.OK, "agent.isolation.hostSlices is off")
    release = (file.text or "").strip()
    match = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if match is None:
        found = f"{file.path}: {file.problem or 'it names no version'}"
        return HostCheck(check, Verdict.UNKNOWN, found)
    if (int(match[1]), int(match[2])) >= _KEEPS_AFFINITY:
        return HostCheck(check, Verdict.OK, f"{file.path} is {shown(release)}: they keep it")
    found = f"{file.path} is {shown(release)}: with agent.isolation.hostSlices services forget "
    found += "their CPUAffinity= and taskset at an admission"
    change = "write AllowedCPUs= in place of CPUAffinity=, or boot Linux 6.2 or later"
    return HostCheck(check, Verdict.WARNING, found, change)


def _mask(file: HostFile) -> Mask:
    return Mask.parse((file.text or "").strip())
