"""The cgroups of pods are where the agent looks for them, with what it writes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.model import CgroupDriver, Config
from agent.tools.doctor.verdicts import HostCheck, Verdict
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.tools.doctor.facts import CgroupControllers, CgroupFacts
    from agent.tools.doctor.kubelet_settings import KubeletSettings

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
        change = "remove `cgroup_disable=cpuset` from the kernel's command line and reboot"
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


def _file(cgroups: CgroupFacts, one: CgroupControllers) -> str:
    return f"{cgroups.mount}/{one.path}/cgroup.controllers"
