"""From a document to the sequence that it describes, or to all its mistakes.

The format is described in `docs/replay.md`. A configuration or a pod that the agent would reject
is a mistake in a sequence that people wrote. In a recorded one (`lenient`) it is what was recorded:
the sequence is read to its end and the rejection becomes part of the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.config.load import config_of_document
from agent.config.model import Config, ConfigError
from agent.config.resolve import managers_beside_kubelet, resolve
from agent.managers.effective_policy import EffectivePolicy
from agent.managers.registry import MANAGERS
from agent.pods.errors import ManifestError
from agent.pods.manifest import checked_pod, load_pod
from agent.pods.model import GivenDevice
from agent.safe_files import read_bounded
from agent.tools.replay.hosts import HostReader
from agent.tools.replay.play import Admit, Ignored, Remove, ReplaySequence, Restart, Start
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    DocumentError,
    Field,
    MappingNode,
    Mistake,
    Node,
    Reader,
    UnreadableError,
    join,
    places,
    read_document,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.pods.model import Pod
    from agent.tools.replay.hosts import DescribedHost
    from agent.tools.replay.play import Step


class ReplayError(DocumentError):
    """A sequence was rejected; `problems` holds every mistake in it with path and line."""

    what = "sequence"


_KEYS: Final = ("name", "host", "config", "steps")
_KINDS: Final = ("admit", "remove", "start", "restart")
#: Only a recorded sequence has it: what has no part in a decision.
IGNORED: Final = "ignored"
_MOST_TIMES: Final = 1000
#: What may stand beside `admit` in a step.
_BESIDE_ADMIT: Final = ("times", "kubeletDevices")


def load_sequence(path: Path) -> ReplaySequence:
    """Return the sequence of a YAML or JSON file. Raises `ReplayError` and `OSError`."""
    try:
        document = read_document(read_bounded(path, DEFAULT_MAX_BYTES))
    except UnreadableError as error:
        raise ReplayError(str(path), (error.problem,)) from error
    return read_sequence(document, str(path), path.parent)


def read_sequence(
    document: Node, source: str, folder: Path, *, lenient: bool = False, defaults: bool = True
) -> ReplaySequence:
    """Return the sequence of a document; files that it names are looked for in `folder`.

    With `defaults` False pods are taken as they stand. Raises `ReplayError` with every mistake.
    """
    reader = _SequenceReader(source, folder, lenient=lenient, defaults=defaults)
    sequence = reader.sequence(Field("", document))
    if sequence is None or reader.problems:
        ordered = sorted(reader.problems, key=lambda problem: problem.line or 0)
        raise ReplayError(source, tuple(ordered))
    return sequence


class _SequenceReader(Struct):
    """Reads one sequence; host and configuration are those in force at the step being read."""

    source: str
    folder: Path
    lenient: bool
    defaults: bool
    hosts: HostReader = field(default_factory=HostReader)
    _host: DescribedHost | None = None
    _config: Config | None = None
    _known: dict[str, Admit] = field(default_factory=dict)

    @property
    def problems(self) -> list[Mistake]:
        return self.hosts.problems

    def sequence(self, root: Field) -> ReplaySequence | None:
        self.hosts.entries(root)
        if (kind := root.child("kind")) is not None and self.hosts.text(kind) == "Pod":
            why = "this is a pod's manifest; 'numawarden replay --from-live' decides it"
            self.hosts.reject(root, f"{why} on the running agent")
            return None
        self.hosts.reject_unknown(root, _KEYS)
        steps = root.child("steps")
        for key, value in (("host", root.child("host")), ("steps", steps)):
            if value is None:
                self.hosts.reject(root, f"{key} is missing")
        named = root.child("name")
        name = self.hosts.text(named) if named is not None else None
        self._config = Config()
        begin = self._host_and_config(root)
        items = enumerate(self.hosts.items(steps)) if steps is not None else ()
        read = tuple((number, step) for number, item in items for step in self._steps(item))
        return ReplaySequence(name or self.source, begin, read)

    def _host_and_config(self, parent: Field) -> Restart:
        """Read `host` and `config`, which stay as they were where they are not given."""
        host, config = parent.child("host"), parent.child("config")
        if host is not None:
            self._host = self.hosts.host(host, self.folder)
        where = config or Field(join(parent.path, "config"), parent.node)
        try:
            if config is not None:
                self._config = None
                self._config = config_of_document(config.node, self.source)
            return Restart(self._rules())
        except ConfigError as error:
            problems = _placed(error, where)
            if not self.lenient:
                self.problems.extend(problems)
            return Restart(None, problems)

    def _rules(self) -> EffectivePolicy | None:
        if self._host is None or self._config is None:
            return None
        machine = self._host.machine
        policy = resolve(self._config, machine, offline=self._host.offline, source=self.source)
        if self.lenient:
            # The kubelet's managers were recorded alone: no scheduler, no admission by node fit.
            policy = replace(policy, fit=None)
        managers = (*managers_beside_kubelet(self._config), *MANAGERS)
        return EffectivePolicy(machine, policy, managers)

    def _steps(self, item: Field) -> Iterator[Step]:
        self.hosts.entries(item)
        known = (*_KINDS, IGNORED) if self.lenient else _KINDS
        self.hosts.reject_unknown(item, (*known, *_BESIDE_ADMIT))
        kinds = [
            kind
            for kind in known
            if isinstance(item.node, MappingNode) and kind in item.node.entries
        ]
        if len(kinds) != 1:
            self.hosts.reject(item, f"a step is one of {', '.join(_KINDS)}")
            return
        if kinds[0] == "admit":
            yield from self._admissions(item)
            return
        for key in _BESIDE_ADMIT:
            if item.child(key) is not None:
                self.hosts.reject(item, f"{key} belongs to admit")
        if kinds[0] == "restart":
            yield self._restart(item)
            return
        step = self._pod_step(kinds[0], item)
        if step is not None:
            yield step

    def _restart(self, item: Field) -> Restart:
        parts = item.child("restart")
        if parts is None:
            return self._host_and_config(
                Field(join(item.path, "restart"), MappingNode({}, item.node.line))
            )
        self.hosts.entries(parts)
        self.hosts.reject_unknown(parts, ("host", "config"))
        return self._host_and_config(parts)

    def _pod_step(self, kind: str, item: Field) -> Step | None:
        value = item.child(kind)
        if value is None:
            self.hosts.reject(item, f"{kind} says nothing")
            return None
        if kind == "start":
            return self._start(value)
        text = self.hosts.text(value)
        if text is None or kind == IGNORED:
            return Ignored(text or "")
        name, uid = self._named(value, text)
        return Remove(name, uid)

    def _start(self, value: Field) -> Start | None:
        self.hosts.entries(value)
        self.hosts.reject_unknown(value, ("pod", "container"))
        pod, container = value.child("pod"), value.child("container")
        if pod is None or container is None:
            self.hosts.reject(value, "pod and container are needed")
            return None
        pod_text, container_text = self.hosts.text(pod), self.hosts.text(container)
        if pod_text is None or container_text is None:
            return None
        name, uid = self._named(pod, pod_text)
        self._check_container(container, uid, container_text)
        return Start(name, uid, container_text)

    def _check_container(self, where: Field, uid: str, name: str) -> None:
        pod = next((admit.pod for admit in self._known.values() if admit.uid == uid), None)
        if pod is None or self.lenient:
            return
        names = [container.name for container in pod.all_containers()]
        if name not in names:
            self.hosts.reject(
                where, f"the pod has no container {shown(name)}, only {', '.join(names)}"
            )

    def _named(self, where: Field, text: str) -> tuple[str, str]:
        """Return name and uid of the pod that an earlier step asks for, the latest of that name."""
        admit = self._known.get(text)
        if admit is not None:
            return admit.name, admit.uid
        if not self.lenient:
            self.hosts.reject(where, f"no step before this one admits a pod {shown(text)}")
        return text, text

    def _admissions(self, item: Field) -> Iterator[Admit]:
        value, times, given = map(item.child, ("admit", *_BESIDE_ADMIT))
        if value is None:
            self.hosts.reject(item, "admit needs a pod, or the name of a file with one")
            return
        number = self.hosts.integer(times, 1, _MOST_TIMES) if times is not None else None
        admit = self._admit(value)
        if admit is None:
            return
        if given is not None:
            if times is not None:
                self.hosts.reject(given, "the same devices cannot be given to several pods (times)")
            admit = self._with_devices(admit, given)
        for one in _copies(admit, number):
            self._known |= {one.uid: one, one.name: one, one.name.rpartition("/")[2]: one}
            yield one

    def _with_devices(self, admit: Admit, field: Field) -> Admit:
        """Return the admission of a pod to which the kubelet gave devices."""
        if self._config is not None and not self._config.agent.kubelet.enabled:
            self.hosts.reject(
                field,
                "set agent.kubelet.enabled to true in config: only a kubelet "
                "beside the agent gives devices",
            )
        if admit.pod is None:
            return admit
        names = [container.name for container in admit.pod.all_containers()]
        self.hosts.reject_unknown(field, names)
        given = {
            container: tuple(self._given(resources))
            for container, resources in self.hosts.entries(field).items()
        }
        return replace(admit, pod=replace(admit.pod, given_devices=given))

    def _given(self, container: Field) -> Iterator[GivenDevice]:
        """Yield the devices of a container: the list of their NUMA nodes by id by resource."""
        for resource, devices in self.hosts.entries(container).items():
            for device, nodes in self.hosts.entries(devices).items():
                yield GivenDevice(resource, device, self.hosts.mask(nodes, "NUMA nodes"))

    def _admit(self, value: Field) -> Admit | None:
        try:
            pod = self._pod(value)
        except ManifestError as error:
            problems = _placed(error, value)
            if not self.lenient:
                self.problems.extend(problems)
                return None
            return _invalid(value, problems)
        return None if pod is None else Admit(f"{pod.namespace}/{pod.name}", pod.uid, pod)

    def _pod(self, value: Field) -> Pod | None:
        pod_level = (self._config or Config()).gates.pod_level_resources
        if isinstance(value.node, MappingNode):
            source = f"{self.source} {value.path}"
            return checked_pod(value.node, source, defaults=self.defaults, pod_level=pod_level)
        text = self.hosts.text(value)
        if text is None:
            return None
        path = self.folder / text
        try:
            content = read_bounded(path, DEFAULT_MAX_BYTES)
        except OSError as error:
            self.hosts.reject(value, f"{path}: {error.strerror}")
            return None
        try:
            return load_pod(content, f"{path} {value.path}", pod_level=pod_level)
        except ManifestError as error:
            for problem in error.problems:
                self.hosts.reject(value, f"{path}: {problem}")
            return None


def _copies(admit: Admit, times: int | None) -> Iterator[Admit]:
    if times is None or admit.pod is None:
        yield admit
        return
    for number in range(1, times + 1):
        name, uid = f"{admit.pod.name}-{number}", f"{admit.uid}-{number}"
        yield Admit(f"{admit.pod.namespace}/{name}", uid, replace(admit.pod, name=name, uid=uid))


def _invalid(value: Field, problems: tuple[Mistake, ...]) -> Admit:
    """Return the admission of a pod that is not valid, as far as its names can be read."""
    name = f"{_text(value, 'namespace', 'default')}/{_text(value, 'name', '?')}"
    return Admit(name, _text(value, "uid", name), None, problems)


def _text(pod: Field, key: str, default: str) -> str:
    metadata = pod.child("metadata")
    found = metadata.child(key) if metadata is not None else None
    return (Reader().text(found) if found is not None else None) or default


def _placed(error: DocumentError, where: Field) -> tuple[Mistake, ...]:
    """Return the problems of a part of a document with paths of the whole."""
    lines = places(where.node, [problem.path for problem in error.problems])
    return tuple(
        Mistake(
            _path(where.path, problem.path), problem.message, problem.line or lines[problem.path]
        )
        for problem in error.problems
    )


def _path(prefix: str, path: str) -> str:
    if not path or not prefix:
        return path or prefix
    return f"{prefix}{path}" if path.startswith("[") else f"{prefix}.{path}"
