"""The opt-in resource: the agent as a device plugin that is there before the kubelet is.

A plugin that registers after the kubelet's first pods of a boot lets all of them fail for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agent.tools.doctor.verdicts import HostCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, HostFile, KubeletFiles

AGENT_UNIT: Final = "numawarden.service"
KUBELET_UNIT: Final = "kubelet.service"
_DROP_IN: Final = f"/etc/systemd/system/{AGENT_UNIT}.d/kubelet.conf"


class _Registered(Struct):
    RegisteredDevices: dict[str, list[str] | None] | None = None


class _DeviceCheckpoint(Struct):
    Data: _Registered = msgspec.field(default_factory=_Registered)


def exclusive_checks(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield whether the kubelet knows the opt-in resource, and whether units start in order."""
    resource = config.agent.kubelet.exclusive_resource
    if not resource:
        found = "none is offered: agent.kubelet.exclusiveResource is empty"
        yield HostCheck("opt-in resource", Verdict.OK, found)
        return
    yield _registration_check(resource, facts.kubelet)
    yield _order_check(resource, facts)


def _registration_check(resource: str, kubelet: KubeletFiles) -> HostCheck:
    check, directory = "opt-in resource", kubelet.plugin_directory
    if directory.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{directory.path}: {directory.problem}")
    if not directory.there:
        found = f"{directory.path} is not a directory; the kubelet makes it at its start"
        return HostCheck(check, Verdict.UNKNOWN, found)
    file = kubelet.device_checkpoint
    if file.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: {file.problem}")
    try:
        known = msgspec.json.decode(file.text or "{}", type=_DeviceCheckpoint)
    except (msgspec.DecodeError, RecursionError) as error:
        return HostCheck(check, Verdict.UNKNOWN, f"{file.path}: not the kubelet's ({error})")
    devices = (known.Data.RegisteredDevices or {}).get(resource)
    if devices:
        found = f"{resource} is registered with {len(devices)} devices ({file.path})"
        return HostCheck(check, Verdict.OK, found)
    found = f"{resource} is not registered ({file.path}): pods that ask for it are not scheduled"
    return HostCheck(check, Verdict.WARNING, found, "start the agent while the kubelet runs")


def _order_check(resource: str, facts: GatheredFacts) -> HostCheck:
    check = "start order"
    units = (*facts.agent_unit, *facts.kubelet_unit)
    problem = next((f"{one.path}: {one.problem}" for one in units if one.problem), "")
    if problem:
        return HostCheck(check, Verdict.UNKNOWN, problem)
    if not any(one.text for one in facts.agent_unit):
        found = f"there is no unit {AGENT_UNIT}: the agent is not a service of this host"
        return HostCheck(check, Verdict.UNKNOWN, found)
    for files, key, other in (
        (facts.agent_unit, "Before", KUBELET_UNIT),
        (facts.kubelet_unit, "After", AGENT_UNIT),
    ):
        for file in files:
            if other in _words((file,), key):
                return HostCheck(check, Verdict.OK, f"{key}={other} in {file.path}")
    found = (
        f"{facts.agent_unit[0].path} has no Before={KUBELET_UNIT}: after a boot pods that ask for "
        f"{resource} can come before the agent, and fail for good"
    )
    change = f"write `[Unit]` and `Before={KUBELET_UNIT}` in {_DROP_IN}, systemctl daemon-reload"
    return HostCheck(check, Verdict.WARNING, found, change)


def _words(files: Iterable[HostFile], key: str) -> set[str]:
    """Return the words of all lines `KEY=...` of unit files."""
    found: set[str] = set()
    for file in files:
        for line in (file.text or "").splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() == key:
                found |= set(value.split())
    return found
