"""The kubelet's own managers are off, and what it reserves agrees with what the agent reserves.

What the kubelet runs with is in its state files: it writes the policy there at every start, and
rejects to start where the file names another policy than its configuration (kubelet v1.36,
`cpumanager/state`, "configured policy differs from state checkpoint policy"). What it will run with
after its next start is in its configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agent.pods.quantity import Quantity, QuantityError
from agent.tools.doctor.verdicts import HostCheck, Verdict
from agent.yaml import shown
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import HostFile, KubeletFiles
    from agent.tools.doctor.kubelet_settings import KubeletSetting, KubeletSettings

_NONE: Final = "none"
#: Of the policies of the topology manager these reject no pod.
_LENIENT: Final = ("none", "best-effort")
_CPU_KEY: Final = "cpuManagerPolicy"
_OPTIONS: Final = "cpuManagerPolicyOptions"
_MOVING: Final = "docs/moving-a-node.md keeps the CPUs of running pods"
_RESERVED: Final = "reservedSystemCPUs"
_CPU_KEYS: Final = ("systemReserved.cpu", "kubeReserved.cpu")


class _ManagerState(Struct):
    policyName: str = ""  # noqa: N815  # the file's own name


class _Manager(Struct, frozen=True):
    """A manager of the kubelet with a state file; `off` is its policy that manages nothing."""

    check: str
    key: str
    off: str
    file: HostFile


def manager_checks(kubelet: KubeletFiles, settings: KubeletSettings) -> Iterator[HostCheck]:
    """Yield what the kubelet's CPU, memory and topology manager do."""
    managers = (
        _Manager("kubelet CPU manager", _CPU_KEY, "none", kubelet.cpu_state),
        _Manager("kubelet memory manager", "memoryManagerPolicy", "None", kubelet.memory_state),
    )
    for manager in managers:
        yield _manager_check(manager, kubelet, settings)
    yield _topology_check(kubelet, settings)


def _manager_check(
    manager: _Manager, kubelet: KubeletFiles, settings: KubeletSettings
) -> HostCheck:
    setting = settings.effective(manager.key)
    running, problem = _policy_of(manager.file)
    configured = manager.off if setting is None else setting.value
    if configured.lower() != _NONE:
        assert setting is not None  # noqa: S101  # the default is off
        found = (
            f"two managers of cpusets on one host: {manager.key} is {shown(configured)} in "
            f"{setting.source}{_overruling(setting, settings.overruled(manager.key))}"
        )
        change = setting.to(manager.off)
        if kubelet.process is not None and (running or "").lower() == _NONE:
            found = f"now {running} ({manager.file.path}); from the kubelet's next start on {found}"
        else:
            change = _turn_off(change, manager)
        return HostCheck(manager.check, Verdict.ERROR, found, change)
    if running is not None and running.lower() != _NONE:
        return HostCheck(
            manager.check, Verdict.ERROR, *_left_on(manager, running, kubelet, settings)
        )
    if settings.unread or problem:
        why = "; ".join((*((problem,) if problem else ()), *settings.unread))
        return HostCheck(
            manager.check,
            Verdict.UNKNOWN,
            f"whether {manager.key} is {manager.off} is not known: {why}",
            "make the file readable for root",
        )
    return _is_off(manager, running, setting, kubelet, settings)


def _left_on(
    manager: _Manager, running: str, kubelet: KubeletFiles, settings: KubeletSettings
) -> tuple[str, str]:
    """Return what is found and to change where only the state file names another policy."""
    found = f"two managers of cpusets on one host: policyName is {shown(running)} in "
    found += manager.file.path
    where = _place(settings.effective(manager.key), manager, settings)
    if kubelet.process is None:
        found += f", with which no kubelet starts whose {manager.key} is {manager.off} ({where})"
        return found, f"remove the file before the kubelet starts; {_MOVING}"
    found += (
        f", so the kubelet (process {kubelet.process.pid}) was started with that policy; {where} "
        "says otherwise and counts from its next start on"
    )
    return found, _turn_off("", manager)


def _turn_off(change: str, manager: _Manager) -> str:
    steps = f"stop the kubelet, remove {manager.file.path}, start the kubelet; {_MOVING}"
    return f"{change}, {steps}" if change else steps


def _is_off(
    manager: _Manager,
    running: str | None,
    setting: KubeletSetting | None,
    kubelet: KubeletFiles,
    settings: KubeletSettings,
) -> HostCheck:
    if running is None and kubelet.config.text is None and kubelet.process is None:
        found = f"neither {kubelet.config.path} nor {manager.file.path} is there"
        change = "name the kubelet's directory in agent.kubelet.directory, or start the kubelet"
        return HostCheck(manager.check, Verdict.UNKNOWN, found, change)
    found = f"{manager.key} is {manager.off} ({_place(setting, manager, settings)})"
    losing = [one for one in settings.overruled(manager.key) if one.value.lower() != _NONE]
    if setting is not None and losing:
        return HostCheck(
            manager.check,
            Verdict.WARNING,
            f"{found}{_overruling(setting, tuple(losing))}",
            losing[0].to(manager.off),
        )
    options = settings.entries(_OPTIONS)
    if manager.key == _CPU_KEY and options:
        found += f": no kubelet starts so, for {_OPTIONS} is set in {options[0].source}"
        change = f"remove {_OPTIONS} from {options[0].source}"
        return HostCheck(manager.check, Verdict.WARNING, found, change)
    written = "" if running is None else f", as in {manager.file.path}"
    return HostCheck(manager.check, Verdict.OK, f"{found}{written}")


def _place(setting: KubeletSetting | None, manager: _Manager, settings: KubeletSettings) -> str:
    if setting is None:
        return f"the default; {settings.file} does not name {manager.key}"
    return setting.source


def _overruling(winner: KubeletSetting, losers: tuple[KubeletSetting, ...]) -> str:
    """Return which places say otherwise and do not count."""
    others = [f"{one.source} ({shown(one.value)})" for one in losers if one.value != winner.value]
    return f", which wins over {' and '.join(others)}" if others else ""


def _policy_of(file: HostFile) -> tuple[str | None, str]:
    """Return the policy in a state file, None where there is none, and why it is not known."""
    if file.text is None:
        return None, f"{file.path}: {file.problem}" if file.problem else ""
    try:
        state = msgspec.json.decode(file.text, type=_ManagerState)
    except (msgspec.DecodeError, RecursionError) as error:
        return None, f"{file.path}: not a state file of the kubelet ({error})"
    return state.policyName or None, ""


def _topology_check(kubelet: KubeletFiles, settings: KubeletSettings) -> HostCheck:
    check, key = "kubelet topology manager", "topologyManagerPolicy"
    setting = settings.effective(key)
    if setting is None and settings.unread:
        found = f"whether {key} is none is not known: {'; '.join(settings.unread)}"
        return HostCheck(check, Verdict.UNKNOWN, found, "make the file readable for root")
    if setting is None and kubelet.config.text is None and kubelet.process is None:
        return HostCheck(check, Verdict.UNKNOWN, f"{kubelet.config.path} is not there")
    if setting is None:
        found = f"{key} is none (the default; {settings.file} does not name it)"
        return HostCheck(check, Verdict.OK, found)
    if setting.value.lower() in _LENIENT:
        return HostCheck(check, Verdict.OK, f"{key} is {setting.value} ({setting.source})")
    return HostCheck(
        check,
        Verdict.WARNING,
        f"{key} is {shown(setting.value)} in {setting.source}: with the other managers off it "
        "looks at devices alone, and rejects pods that the agent would align",
        setting.to(_NONE),
    )


def reservation_check(
    config: Config, kubelet: KubeletFiles, settings: KubeletSettings
) -> HostCheck:
    """Return whether the kubelet keeps as many CPUs from pods as the agent does.

    The scheduler counts by the kubelet's reservation. Where that is smaller, pods come for which
    the agent has no CPUs.
    """
    check = "reserved CPUs"
    listed = config.reserved_system_cpus
    own = config.reserved_millicpus if listed is None else 1000 * len(listed)
    if settings.unread:
        return HostCheck(check, Verdict.UNKNOWN, "; ".join(settings.unread))
    if kubelet.config.text is None and kubelet.process is None:
        return HostCheck(check, Verdict.UNKNOWN, f"{kubelet.config.path} is not there")
    try:
        theirs, where = _reserved(settings)
    except (ValueError, QuantityError) as error:
        return HostCheck(check, Verdict.UNKNOWN, str(error))
    text = f"the kubelet reserves {_cpus(theirs)} CPUs ({where}), the agent {_cpus(own)}"
    if theirs < own:
        change = _reserve(settings, own if listed is None else listed)
        found = f"{text}: the scheduler sends pods for {_cpus(own - theirs)} CPUs more"
        return HostCheck(check, Verdict.WARNING, found, change)
    both = settings.effective(_RESERVED)
    if listed is not None and both is not None and Mask.parse(both.value) != listed:
        found = (
            f"{_RESERVED} is {shown(both.value)} in {both.source} and {listed} for the agent, "
            "which decides where pods run"
        )
        return HostCheck(check, Verdict.WARNING, found, both.to(f'"{listed}"'))
    return HostCheck(check, Verdict.OK, text)


def _reserved(settings: KubeletSettings) -> tuple[int, str]:
    """Return the thousandths of CPUs that the kubelet reserves, and where that stands."""
    listed = settings.effective(_RESERVED)
    if listed is not None:
        return 1000 * len(Mask.parse(listed.value)), listed.source
    found = [one for key in _CPU_KEYS if (one := settings.effective(key)) is not None]
    total = sum(Quantity.parse(one.value).milli_value for one in found)
    return total, " and ".join(dict.fromkeys(one.source for one in found)) or "the default"


def _reserve(settings: KubeletSettings, own: int | Mask) -> str:
    if isinstance(own, Mask):
        return settings.change(_RESERVED, f'"{own}"')
    return settings.change(_CPU_KEYS[0], f"{own}m")


def _cpus(millis: int) -> str:
    return f"{millis / 1000:g}"
