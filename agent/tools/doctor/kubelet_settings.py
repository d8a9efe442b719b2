"""What a kubelet is configured with: flags win over drop-ins, these over the file, that over none.

Names are those of `KubeletConfiguration`; an entry of a mapping is `featureGates.PodsAPI`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.yaml import (
    MappingNode,
    Node,
    Number,
    ScalarNode,
    Unclear,
    UnreadableError,
    read_document,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.tools.doctor.facts import HostFile, KubeletFiles

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
    """All values of each setting, the one that counts first, and why files cannot be read.

    `file` is where settings that stand nowhere yet would be written.
    """

    values: Mapping[str, tuple[KubeletSetting, ...]]
    unread: tuple[str, ...]
    file: str

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
    return KubeletSettings(values, tuple(unread), kubelet.config.path)


def flag_of(arguments: Iterable[str], name: str) -> str | None:
    """Return the value of a flag, `--name=value` or `--name value`; the last counts, as in Go."""
    return next((value for flag, value in reversed(list(_pairs(arguments))) if flag == name), None)


def _flags(kubelet: KubeletFiles, unread: list[str]) -> Iterator[tuple[str, KubeletSetting]]:
    if kubelet.process is not None:
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
