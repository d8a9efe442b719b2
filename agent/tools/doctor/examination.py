"""All checks of a host, in the order in which they are read, and those that decide on a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.tools.doctor.checks.cgroups import cgroup_checks, driver_check, version_check
from agent.tools.doctor.checks.exclusive_resource import exclusive_checks
from agent.tools.doctor.checks.kubelet_managers import manager_checks, reservation_check
from agent.tools.doctor.checks.other_managers import (
    other_manager_checks,
    process_check,
)
from agent.tools.doctor.checks.pod_sources import source_checks
from agent.tools.doctor.checks.runtime import runtime_checks
from agent.tools.doctor.kubelet_settings import flag_of, settings_of
from agent.tools.doctor.verdicts import HostCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, KubeletFiles


def examine(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield every check of a host; a pure function of configuration and facts.

    On a host that has no kubelet, or whose kubelet the agent ignores, they are those of an agent
    that manages the host's pods alone.
    """
    settings = settings_of(facts.kubelet)
    yield _mode_check(config, facts.kubelet)
    if is_alone(config, facts):
        yield version_check(facts.cgroups)
        yield from other_manager_checks(config, facts)
        return
    yield _directory_check(facts.kubelet)
    yield from manager_checks(facts.kubelet, settings)
    yield reservation_check(config, facts.kubelet, settings)
    yield from cgroup_checks(config, facts.cgroups, settings)
    if facts.runtime is not None:
        yield from runtime_checks(facts.runtime)
    yield from source_checks(facts, settings)
    yield from exclusive_checks(config, facts)
    yield from other_manager_checks(config, facts)


def is_alone(config: Config, facts: GatheredFacts) -> bool:
    """Return whether the agent is to work without a kubelet."""
    kubelet = config.agent.kubelet
    here = facts.kubelet.process is not None or facts.kubelet.config.text is not None
    return not kubelet.enabled and (kubelet.ignored or not here)


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


def _mode_check(config: Config, kubelet: KubeletFiles) -> HostCheck:
    check = "beside the kubelet"
    if config.agent.kubelet.enabled:
        return HostCheck(check, Verdict.OK, "agent.kubelet.enabled is true")
    found = "agent.kubelet.enabled is false"
    change = "write `agent: {kubelet: {enabled: true}}` in the agent's configuration"
    if kubelet.process is None:
        if kubelet.config.text is None:
            alone = f"{found} and no kubelet is here: the agent alone manages pods"
            return HostCheck(check, Verdict.OK, alone)
        return HostCheck(check, Verdict.WARNING, found, change)
    if config.agent.kubelet.ignored:
        found = f"a kubelet runs (process {kubelet.process.pid}) and agent.kubelet.ignored is true"
        change = "reserve there all CPUs but the agent's (reservedSystemCPUs), and here its own"
        return HostCheck(check, Verdict.WARNING, found, change)
    found += f" and a kubelet runs (process {kubelet.process.pid}): it removes cgroups of pods "
    return HostCheck(check, Verdict.ERROR, f"{found}that it does not know", change)


def _directory_check(kubelet: KubeletFiles) -> HostCheck:
    check = "kubelet directory"
    if kubelet.process is None:
        found = f"{kubelet.directory} (agent.kubelet.directory); no kubelet runs"
        return HostCheck(check, Verdict.OK, found)
    named = flag_of(kubelet.process.arguments, "root-dir")
    if named is None or named.rstrip("/") == kubelet.directory:
        return HostCheck(check, Verdict.OK, f"{kubelet.directory} (agent.kubelet.directory)")
    found = f"agent.kubelet.directory is {kubelet.directory}, but the kubelet (process "
    found += f"{kubelet.process.pid}) has --root-dir={named}"
    change = f"write `agent: {{kubelet: {{directory: {named}}}}}` in the agent's configuration"
    return HostCheck(check, Verdict.ERROR, found, change)
