"""The kubelet: its settings, managers and reservation, its pods, the opt-in resource.

Of its settings, flags win over drop-ins, these over the file, that over none. Names are those of
`KubeletConfiguration`; an entry of a mapping is `featureGates.PodsAPI`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agent.managers.versions import OLDEST, since
from agent.pods.quantity import Quantity, QuantityError
from agent.runtimes import KUBELET
from agent.tools.doctor.facts import HostCheck, Verdict
from agent.tools.doctor.version import rules_of
from agent.versions import version_of
from agent.yaml import (
    MappingNode,
    Number,
    ScalarNode,
    Unclear,
    UnreadableError,
    read_document,
    shown,
)
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts, HostFile, KubeletFiles
    from agent.yaml import Node


#: The flags of the settings that are looked at; those of mappings are lists of NAME=VALUE.
_FLAGS: Final[Mapping[str, str]] = {
    "cpu-manager-policy": "cpuManagerPolicy",
    "memory-manager-policy": "memoryManagerPolicy",
    "topology-manager-policy": "topologyManagerPolicy",
    "cgroup-driver": "cgroupDriver",
    "reserved-cpus": "reservedSystemCPUs",
}
_MAPPINGS: Final[Mapping[str, str]] = {
    "cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "feature-gates": "featureGates",
    "system-reserved": "systemReserved",
    "kube-reserved": "kubeReserved",
}
#: What stands in a line for its value; no name of a setting contains it.
_VALUE: Final = "<value>"
_NAMES: Final = frozenset(_FLAGS.values())
_SECTIONS: Final = frozenset(_MAPPINGS.values())
#: As the kubelet's packages name the variables with its flags.
_VARIABLES: Final = ("KUBELET_KUBEADM_ARGS", "KUBELET_EXTRA_ARGS", "KUBELET_ARGS")


class KubeletSetting(Struct, frozen=True):
    """A value, where it stands, and the line that stands there, with `<value>` for it."""

    value: str
    source: str
    line: str

    def to(self, value: str) -> str:
        """Return where to write another value: the line and its place."""
        return f"write `{self.line.replace(_VALUE, value)}` in {self.source}"


class KubeletSettings(Struct, frozen=True):
    """All values of each setting, the one that counts first, and why others are not known.

    `file` is where settings that stand nowhere yet would be written, `remedy` what makes those
    known that are not.
    """

    values: Mapping[str, tuple[KubeletSetting, ...]]
    unread: tuple[str, ...]
    file: str
    remedy: str

    def effective(self, name: str) -> KubeletSetting | None:
        """Return the setting that counts; None leaves the kubelet's default."""
        return next(iter(self.values.get(name, ())), None)

    def overruled(self, name: str) -> tuple[KubeletSetting, ...]:
        """Return the settings that do not count."""
        return self.values.get(name, ())[1:]

    def entries(self, section: str) -> tuple[KubeletSetting, ...]:
        """Return the settings that count of all entries of a mapping."""
        found = (name for name in self.values if name.startswith(f"{section}."))
        return tuple(self.values[name][0] for name in found)

    def change(self, name: str, value: str) -> str:
        """Return the line with which a setting has another value, and its file."""
        found = self.effective(name)
        line = _line(name)
        return (KubeletSetting("", self.file, line) if found is None else found).to(value)


def settings_of(kubelet: KubeletFiles) -> KubeletSettings:
    """Return what a kubelet runs with, or what it would be started with."""
    found: dict[str, list[KubeletSetting]] = {}
    unread: list[str] = []
    for name, setting in _flags(kubelet, unread):
        found.setdefault(name, []).append(setting)
    for file in (*reversed(kubelet.drop_ins), kubelet.config):
        for name, setting in _file_settings(file, unread):
            found.setdefault(name, []).append(setting)
    values = {name: tuple(settings) for name, settings in found.items()}
    process, remedy = kubelet.process, "make the file readable for root"
    if process is not None and process.name != KUBELET:
        remedy = f"see in the configuration of {process.name} what its kubelet runs with"
    return KubeletSettings(values, tuple(unread), kubelet.config.path, remedy)


def flag_of(arguments: Iterable[str], name: str) -> str | None:
    """Return the value of a flag, `--name=value` or `--name value`; the last counts, as in Go."""
    return next((value for flag, value in reversed(list(_pairs(arguments))) if flag == name), None)


def _flags(kubelet: KubeletFiles, unread: list[str]) -> Iterator[tuple[str, KubeletSetting]]:
    if kubelet.process is not None:
        if kubelet.process.name != KUBELET:
            unread.append(f"{kubelet.process.name} has flags of its own, not those of its kubelet")
        source = f"the flags of the kubelet (process {kubelet.process.pid})"
        yield from _settings_of_flags(kubelet.process.arguments, source)
        return
    for file in kubelet.environment:
        if file.problem:
            unread.append(f"{file.path}: {file.problem}")
        try:
            arguments = tuple(_arguments(file.text or ""))
        except ValueError as error:
            unread.append(f"{file.path}: {error}")
        else:
            yield from _settings_of_flags(arguments, file.path)


def _arguments(text: str) -> Iterator[str]:
    """Yield the flags of a file of variables, as systemd reads one. Raises `ValueError`."""
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name in _VARIABLES:
            for word in shlex.split(value):
                yield from shlex.split(word)


def _settings_of_flags(
    arguments: Iterable[str], source: str
) -> Iterator[tuple[str, KubeletSetting]]:
    for flag, value in reversed(list(_pairs(arguments))):
        if flag in _FLAGS:
            yield _FLAGS[flag], KubeletSetting(value, source, f"--{flag}={_VALUE}")
        elif flag in _MAPPINGS:
            for entry in reversed(value.split(",")):
                name, _, amount = entry.partition("=")
                line = f"--{flag}={name.strip()}={_VALUE}"
                yield (
                    f"{_MAPPINGS[flag]}.{name.strip()}",
                    KubeletSetting(amount.strip(), source, line),
                )


def _pairs(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values; a switch without one has the next argument, or ""."""
    pending: str | None = None
    for argument in arguments:
        if not argument.startswith("-"):
            if pending is not None:
                yield pending, argument
            pending = None
            continue
        if pending is not None:
            yield pending, ""
        name, equals, value = argument.lstrip("-").partition("=")
        pending = None if equals else name
        if equals:
            yield name, value
    if pending is not None:
        yield pending, ""


def _file_settings(file: HostFile, unread: list[str]) -> Iterator[tuple[str, KubeletSetting]]:
    if file.problem:
        unread.append(f"{file.path}: {file.problem}")
    if file.text is None:
        return
    try:
        document = read_document(file.text)
    except UnreadableError as error:
        unread.append(f"{file.path}: {error.problem}")
        return
    if not isinstance(document, MappingNode):
        unread.append(f"{file.path}: not a KubeletConfiguration")
        return
    for name, node in document.entries.items():
        if name in _NAMES and (text := _text(node)):
            yield name, KubeletSetting(text, file.path, _line(name))
        elif name in _SECTIONS and isinstance(node, MappingNode):
            for entry, value in node.entries.items():
                full = f"{name}.{entry}"
                if (amount := _text(value)) is not None:
                    yield full, KubeletSetting(amount, file.path, _line(full))


def _line(name: str) -> str:
    """Return the line of a setting in a configuration file."""
    section, dot, entry = name.partition(".")
    return f"{section}: {{{entry}: {_VALUE}}}" if dot else f"{name}: {_VALUE}"


def _text(node: Node) -> str | None:
    if not isinstance(node, ScalarNode) or node.value is None:
        return None
    value = node.value
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number | Unclear) else value


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
    """Yield what the kubelet's CPU, memory and topology manager do.

    What the kubelet runs with is in its state files: it writes the policy there at every start, and
    rejects to start where the file names another policy than its configuration (kubelet v1.36,
    `cpumanager/state`, "configured policy differs from state checkpoint policy"). What it will run
    with after its next start is in its configuration.
    """
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
            settings.remedy,
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
    if kubelet.process.name != KUBELET:
        where = f"in the configuration of {kubelet.process.name}"
        return f"{found}, with which its kubelet was started", _turn_off(
            f"write {manager.key} {manager.off} {where}", manager
        )
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
        return HostCheck(check, Verdict.UNKNOWN, found, settings.remedy)
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


_GATE: Final = "featureGates.PodsAPI"
#: No kubelet before the oldest whose rules are known has the Pods API.
_FIRST: Final = OLDEST
#: The first that has it on by default.
_ON: Final = since(lambda rules: rules.pods_api_is_on)
_ENDPOINT: Final = "set agent.kubelet.podsEndpoint and agent.kubelet.tokenFile"


def source_checks(facts: GatheredFacts, settings: KubeletSettings) -> Iterator[HostCheck]:
    """Yield whether pods' specifications reach the agent, and the gate that brings them best."""
    yield _source_check(facts, settings)
    yield _gate_check(facts, settings)


def _source_check(facts: GatheredFacts, settings: KubeletSettings) -> HostCheck:
    check, kubelet = "pod source", facts.kubelet
    failed = [f"{one.way}: {one.problem}" for one in facts.asked if one.problem]
    used = next((one for one in facts.asked if not one.problem), None)
    if used is not None:
        found = "; ".join((f"{used.way} lists {used.pods} pods", *failed))
        if not failed:
            return HostCheck(check, Verdict.OK, found)
        change = "see `journalctl -u kubelet`, and what agent.kubelet has of podsEndpoint"
        return HostCheck(check, Verdict.WARNING, found, change)
    if kubelet.pods_api.problem:
        failed.append(f"{kubelet.pods_api.path}: {kubelet.pods_api.problem}")
    elif not kubelet.pods_api.there:
        failed.append(f"there is no Pods API at {kubelet.pods_api.path}")
    change = _ENDPOINT if kubelet.pods_api.there else _set_gate(settings)
    if kubelet.process is None:
        return HostCheck(check, Verdict.UNKNOWN, "; ".join(("no kubelet runs", *failed)))
    found = "; ".join((*failed, "pods whose specification is not known run shared"))
    return HostCheck(check, Verdict.ERROR, found, change)


def _gate_check(facts: GatheredFacts, settings: KubeletSettings) -> HostCheck:
    check, kubelet = "gate PodsAPI", facts.kubelet
    version = "" if facts.runtime is None else facts.runtime.packages.get("kubelet", "")
    known, numbers = rules_of(version), version_of(version)
    setting = settings.effective(_GATE)
    by_default = known is not None and known.rules.pods_api_is_on
    on = by_default if setting is None else setting.value.lower() == "true"
    off = f"not set in {settings.file}" if setting is None else f"off in {setting.source}"
    if kubelet.pods_api.there and (on or (setting is None and settings.unread)):
        return HostCheck(check, Verdict.OK, f"{kubelet.pods_api.path} is served")
    if kubelet.pods_api.there:
        found = f"now {kubelet.pods_api.path} is served; at the kubelet's next start it is not, "
        found += f"for the gate is {off}"
        if setting is None:
            found += f", which turns it off before {_ON}"
        if by_default:
            found = f"{kubelet.pods_api.path} answers errors only, for the gate is {off}"
        return HostCheck(check, Verdict.WARNING, found, settings.change(_GATE, "true"))
    if numbers is not None and numbers < (version_of(_FIRST) or ()):
        found = f"kubelet {version} (package kubelet) has no Pods API and does not know the gate"
        return HostCheck(check, Verdict.WARNING, found, _ENDPOINT)
    if not on:
        if setting is None and settings.unread:
            return HostCheck(check, Verdict.UNKNOWN, "; ".join(settings.unread))
        return HostCheck(check, Verdict.WARNING, off, _set_gate(settings))
    where = "by default" if setting is None else f"in {setting.source}"
    found = f"on {where}, but {kubelet.pods_api.path} is not a socket"
    verdict, change = Verdict.WARNING, "restart the kubelet"
    if kubelet.process is None:
        verdict, change, found = Verdict.UNKNOWN, "", f"{found} while no kubelet runs"
    return HostCheck(check, verdict, found, change)


def _set_gate(settings: KubeletSettings) -> str:
    """Return how the gate is set; a kubelet that does not know a gate does not start."""
    return (
        f"{settings.change(_GATE, 'true')} and restart the kubelet if it is of Kubernetes "
        f"{_FIRST.removeprefix('v')}, with which the gate came; {_ENDPOINT} if it is older"
    )


AGENT_UNIT: Final = "numawarden.service"
KUBELET_UNIT: Final = "kubelet.service"
_DROP_IN: Final = f"/etc/systemd/system/{AGENT_UNIT}.d/kubelet.conf"


class _Registered(Struct):
    RegisteredDevices: dict[str, list[str] | None] | None = None


class _DeviceCheckpoint(Struct):
    Data: _Registered = msgspec.field(default_factory=_Registered)


def exclusive_checks(config: Config, facts: GatheredFacts) -> Iterator[HostCheck]:
    """Yield whether the kubelet knows the opt-in resource, and whether units start in order.

    A plugin that registers after the kubelet's first pods of a boot lets all of them fail for good.
    """
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
