"""The container runtime: which one, of which version, and whether NRI plugins can work with it.

What is known of versions was seen with containerd 1.7.24, 2.1.9 and 2.3.4. CRI-O is recognized by
its socket and its files and was not tried. containerd's file has versions 2 and 3, with NRI in the
same tables; the files that it imports win over it. CRI-O reads `crio.conf.d` after `crio.conf`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from agent.tools.doctor.facts import HostCheck, Verdict
from agent.versions import version_of
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.tools.doctor.facts import HostFile, RuntimeFacts


CONTAINERD_FILE: Final = "/etc/containerd/config.toml"
CRIO_FILE: Final = "/etc/crio/crio.conf"
#: containerd before this leaks a sandbox for each one that an NRI plugin rejects, and does not
#: start again afterwards (containerd issues 13355 and 13609).
LEAK_REPAIRED: Final = (2, 2, 6)
#: From here on containerd has NRI turned on by default.
_ON_BY_DEFAULT: Final = (2, 0, 0)
#: From here on containerd has the validator (NRI 0.10).
_VALIDATES: Final = (2, 2, 0)
#: The runtime's own defaults, in seconds.
_REGISTRATION, _REQUEST = ("plugin_registration_timeout", 5.0), ("plugin_request_timeout", 2.0)
_ANNOTATION: Final = 'required-plugins.noderesource.dev: "[numawarden]"'
_PACKAGES: Final = {"containerd": ("containerd", "containerd.io"), "cri-o": ("cri-o",)}


def runtime_checks(facts: RuntimeFacts) -> Iterator[HostCheck]:
    """Yield the checks of the runtime, of its version, and of NRI in it."""
    name = _name(facts)
    if name is None:
        problems = [one.problem for one in (facts.containerd_socket, facts.crio_socket)]
        known = not any(problems)
        yield HostCheck(
            "container runtime",
            Verdict.ERROR if known else Verdict.UNKNOWN,
            f"neither {facts.containerd_socket.path} nor {facts.crio_socket.path} is a socket"
            if known
            else f"{facts.containerd_socket.path}: {next(filter(None, problems))}",
            "start containerd (1.7.24, 2.1.9 and 2.3.4 were tried) or CRI-O" if known else "",
        )
        return
    version, source, problem = _version(name, facts)
    numbers = version_of(version)
    if name == "containerd":
        yield _version_check(version, source, problem, facts)
        settings = containerd_settings(facts.containerd, CONTAINERD_FILE)
    else:
        found = f"cri-o {version} ({source})" if version else f"cri-o, {problem}"
        found += "; not tried with the agent"
        change = "try it where no user's pods run; containerd 1.7.24, 2.1.9 and 2.3.4 were tried"
        yield HostCheck("container runtime", Verdict.WARNING, found, change)
        settings = crio_settings(facts.crio, CRIO_FILE)
    yield _nri_check(name, numbers, facts, settings)
    yield _validator_check(name, numbers, settings)
    yield _timeout_check(name, settings)


def _name(facts: RuntimeFacts) -> str | None:
    if facts.reported is not None and facts.reported.program in _PACKAGES:
        return facts.reported.program
    if facts.containerd_socket.there:
        return "containerd"
    return "cri-o" if facts.crio_socket.there else None


def _version(name: str, facts: RuntimeFacts) -> tuple[str, str, str]:
    """Return the version, what says so, and why it is not known.

    The runtime itself is asked first: a package may have been upgraded beside a running runtime.
    """
    asked = facts.reported
    if asked is not None and asked.version:
        return asked.version, asked.source, ""
    silent = f"; {asked.problem}" if asked is not None and asked.problem else ""
    for package in _PACKAGES[name]:
        if package in facts.packages:
            return facts.packages[package], f"package {package}{silent}", ""
    return "", "", f"of a version that no package of dpkg names{silent}"


def _version_check(version: str, source: str, problem: str, facts: RuntimeFacts) -> HostCheck:
    check, name = "container runtime", "containerd"
    numbers = version_of(version)
    if numbers is None:
        why = problem or f"the version {shown(version)} ({source}) cannot be read"
        return HostCheck(check, Verdict.UNKNOWN, f"{name}, {why}")
    found = f"{name} {version} ({source})"
    for package in _PACKAGES[name]:
        installed = facts.packages.get(package, version)
        if version_of(installed) != numbers:
            found = f"now {found}; package {package} has {installed}, which counts from the next "
            found += "start on where the service runs it"
    if numbers >= LEAK_REPAIRED:
        return HostCheck(check, Verdict.OK, found)
    found += (
        ": it leaks the sandbox of every pod that an NRI plugin rejects in RunPodSandbox, and "
        "does not start again after that; the agent rejects elsewhere"
    )
    if not facts.plugins.names:
        return HostCheck(check, Verdict.OK, found)
    found += f", the plugins in {facts.plugins.path} may not"
    return HostCheck(check, Verdict.WARNING, found, "upgrade containerd to 2.2.6 or 2.3")


def _nri_check(
    name: str,
    numbers: tuple[int, int, int] | None,
    facts: RuntimeFacts,
    settings: RuntimeSettings,
) -> HostCheck:
    check, socket = "NRI", facts.nri_socket
    if socket is None:
        found = "agent.kubelet.nriSocket is empty: containers get their CPUs after they started"
        change = "write `agent: {kubelet: {nriSocket: /var/run/nri/nri.sock}}`"
        return HostCheck(check, Verdict.WARNING, found, f"{change} in the agent's configuration")
    if socket.problem:
        return HostCheck(check, Verdict.UNKNOWN, f"{socket.path}: {socket.problem}")
    without = _without_nri(name, numbers, socket.path, settings)
    if not socket.there:
        if settings.unread:
            without = "; ".join(settings.unread), "make the file readable for root"
        why, change = without or (
            f"NRI is not turned off in {settings.main}",
            f"start {name}, and see its log for `nri`",
        )
        return HostCheck(check, Verdict.ERROR, f"{socket.path} is not a socket: {why}", change)
    if without is None or not any(one.text for one in (*facts.containerd, *facts.crio)):
        return HostCheck(check, Verdict.OK, f"{socket.path} is there")
    why, change = without
    found = f"now {socket.path} is there; at the next start of {name} it is not: {why}"
    return HostCheck(check, Verdict.ERROR, found, change)


def _without_nri(
    name: str, numbers: tuple[int, int, int] | None, socket: str, settings: RuntimeSettings
) -> tuple[str, str] | None:
    """Return why a runtime that starts now makes no socket of NRI, and what to change."""
    key = "nri_listen" if name == "cri-o" else "socket_path"
    listens, where = settings.text(key, socket)
    if _in_run(listens) != _in_run(socket):
        change = f"write `agent: {{kubelet: {{nriSocket: {listens}}}}}`"
        return f"{key} is {shown(listens)} in {where}", f"{change} in the agent's configuration"
    if name == "cri-o":
        on, file = settings.switch("enable_nri", default=True)
        change = f"write `enable_nri = true` in [crio.nri] of {file} and restart CRI-O"
        return None if on else (f"enable_nri is false in {file}", change)
    if settings.off_in:
        change = f"remove `{NRI}` from disabled_plugins in {settings.off_in}, restart containerd"
        return f"disabled_plugins of {settings.off_in} lists NRI", change
    default_off = numbers is not None and numbers < _ON_BY_DEFAULT
    off, file = settings.switch("disable", default=default_off)
    change = f"write `disable = false` in {NRI_TABLE} of {file} and restart containerd"
    if off and "disable" not in settings.entries:
        return "this version has NRI off by default", change
    return (f"disable is true in {file}", change) if off else None


def _in_run(path: str) -> str:
    """Return a path below /var/run as that below /run to which it leads."""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _validator_check(
    name: str, numbers: tuple[int, int, int] | None, settings: RuntimeSettings
) -> HostCheck:
    check = "required plugin"
    table = f"{NRI_TABLE[:-1]}.{VALIDATOR}]"
    if name == "cri-o" or (numbers is not None and numbers < _VALIDATES):
        found = (
            "this runtime has no NRI validator (containerd from 2.2 on has one): a pod that starts "
            "while the agent is away runs unpinned until the agent is back"
        )
        return HostCheck(check, Verdict.OK, found)
    enabled, file = settings.switch(f"{VALIDATOR}.enable", default=False)
    required, where = settings.entries.get(f"{VALIDATOR}.required_plugins", ([], ""))
    if not enabled:
        found = (
            f"the validator is off ({file}): a pod that starts while the agent is away runs "
            "unpinned until the agent is back"
        )
        change = f"write `enable = true` in {table} of {settings.main} and restart containerd; "
        change += f"then annotate pods that must not start unpinned: {_ANNOTATION}"
        verdict = Verdict.UNKNOWN if numbers is None else Verdict.WARNING
        return HostCheck(check, verdict, found, change)
    if required:
        found = (
            f"required_plugins in {where} is a list for all pods: while the agent is away it keeps "
            "static pods of the control plane from starting, too"
        )
        change = f"remove required_plugins from {where} and annotate pods instead: {_ANNOTATION}"
        return HostCheck(check, Verdict.WARNING, found, change)
    found = f"the validator is on ({file}); it serves pods with the annotation {_ANNOTATION}"
    return HostCheck(check, Verdict.OK, found)


def _timeout_check(name: str, settings: RuntimeSettings) -> HostCheck:
    check = "NRI timeouts"
    prefix = "nri_" if name == "cri-o" else ""
    table = "[crio.nri]" if name == "cri-o" else NRI_TABLE
    if settings.unread:
        return HostCheck(check, Verdict.UNKNOWN, "; ".join(settings.unread))
    said = []
    for key, least in (_REGISTRATION, _REQUEST):
        text, file = settings.text(f"{prefix}{key}", f"{least:g}s")
        value = seconds_of(text)
        if value is None or value < least:
            found = f"{prefix}{key} is {shown(text)} in {file}; a slow answer is given up earlier"
            change = f'write `{prefix}{key} = "{least:g}s"` in {table} of {file}'
            return HostCheck(check, Verdict.WARNING, found, f"{change} and restart the runtime")
        said.append(f"{prefix}{key} {text}")
    return HostCheck(check, Verdict.OK, ", ".join(said))


NRI: Final = "io.containerd.nri.v1.nri"
VALIDATOR: Final = "default_validator"
#: In containerd's file; version 3 writes the same with other quotes.
NRI_TABLE: Final = f"[plugins.'{NRI}']"

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")


class RuntimeSettings(Struct, frozen=True):
    """The table of NRI with the file of each entry, and why files cannot be read.

    `off_in` is the file that turns NRI off for good, `main` the file in which to change something.
    """

    entries: dict[str, tuple[Any, str]]
    unread: tuple[str, ...]
    main: str
    off_in: str = ""

    def text(self, name: str, default: str) -> tuple[str, str]:
        """Return a text with its file; the default where there is none."""
        value, file = self.entries.get(name, (default, self.main))
        return (value, file) if isinstance(value, str) else (default, self.main)

    def switch(self, name: str, *, default: bool) -> tuple[bool, str]:
        """Return true or false with its file; the default where it is neither."""
        value, file = self.entries.get(name, (default, self.main))
        return (value, file) if isinstance(value, bool) else (default, self.main)


def toml_of(file: HostFile) -> tuple[dict[str, Any], str]:
    """Return a TOML document, empty where there is none, and why it cannot be read, else ""."""
    if file.text is None:
        return {}, f"{file.path}: {file.problem}" if file.problem else ""
    try:
        return tomllib.loads(file.text), ""
    except (ValueError, RecursionError) as error:
        return {}, f"{file.path}: not TOML: {error}"


def containerd_settings(files: Iterable[HostFile], main: str) -> RuntimeSettings:
    """Return what containerd is configured with; the last of the files counts."""
    entries: dict[str, tuple[Any, str]] = {}
    unread: list[str] = []
    off_in = ""
    for file in files:
        document, problem = toml_of(file)
        if problem:
            unread.append(problem)
        disabled = document.get("disabled_plugins")
        if isinstance(disabled, list) and NRI in disabled:
            off_in = file.path
        nri = _table(_table(document, "plugins"), NRI)
        validator = _table(nri, VALIDATOR)
        entries |= {name: (value, file.path) for name, value in nri.items() if name != VALIDATOR}
        entries |= {f"{VALIDATOR}.{name}": (value, file.path) for name, value in validator.items()}
    return RuntimeSettings(entries, tuple(unread), main, off_in)


def crio_settings(files: Iterable[HostFile], main: str) -> RuntimeSettings:
    """Return what CRI-O is configured with; the last of the files counts."""
    entries: dict[str, tuple[Any, str]] = {}
    unread: list[str] = []
    for file in files:
        document, problem = toml_of(file)
        if problem:
            unread.append(problem)
        nri = _table(_table(document, "crio"), "nri")
        entries |= {name: (value, file.path) for name, value in nri.items()}
    return RuntimeSettings(entries, tuple(unread), main)


def allowed_annotations(files: Iterable[HostFile]) -> dict[str, str]:
    """Return what CRI-O lets pods ask for with annotations, with the file that says so."""
    found: dict[str, str] = {}
    for file in files:
        document, _ = toml_of(file)
        handlers = _table(_table(_table(document, "crio"), "runtime"), "runtimes")
        for name in handlers:
            allowed = _table(handlers, name).get("allowed_annotations")
            if isinstance(allowed, list):
                found |= {each: file.path for each in allowed if isinstance(each, str)}
    return found


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it (`1m30s`), None for another text."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
