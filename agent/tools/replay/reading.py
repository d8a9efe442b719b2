"""From a document to the sequence that it describes, or to all its mistakes (`docs/replay.md`).

A configuration or a pod that the agent would reject is a mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import field
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
from agent.tools.replay.play import Admit, Remove, ReplaySequence, Restart, Start
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    DocumentError,
    Field,
    MappingNode,
    Mistake,
    Node,
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


def read_sequence(document: Node, source: str, folder: Path) -> ReplaySequence:
    """Return the sequence of a document; files that it names are looked for in `folder`.

    Raises `ReplayError` with every mistake.
    """
    reader = _SequenceReader(source=source, folder=folder)
    sequence = reader.sequence(Field("", document))
    if sequence is None or reader.problems:
        ordered = sorted(reader.problems, key=lambda problem: problem.line or 0)
        raise ReplayError(source, tuple(ordered))
    return sequence


class _SequenceReader(HostReader, kw_only=True):
    """Reads one sequence; host and configuration are those in force at the step being read."""

    source: str
    folder: Path
    _host: DescribedHost | None = None
    _config: Config | None = field(default_factory=Config)
    #: Earlier admissions by uid, name and namespace/name of their pods.
    _known: dict[str, Admit] = field(default_factory=dict)

    def sequence(self, root: Field) -> ReplaySequence | None:
        """Return the sequence, None beside the mistakes that keep it from being one."""
        self.entries(root)
        if (kind := root.child("kind")) is not None and self.text(kind) == "Pod":
            why = "this is a pod's manifest; 'numawarden replay --from-live' decides it"
            self.reject(root, f"{why} on the running agent")
            return None
        self.reject_unknown(root, _KEYS)
        steps = root.child("steps")
        for key, value in (("host", root.child("host")), ("steps", steps)):
            if value is None:
                self.reject(root, f"{key} is missing")
        named = root.child("name")
        name = self.text(named) if named is not None else None
        rules = self._rules(root)
        items = enumerate(self.items(steps)) if steps is not None else ()
        read = tuple((number, step) for number, item in items for step in self._steps(item))
        return None if rules is None else ReplaySequence(name or self.source, rules, read)

    def _rules(self, parent: Field) -> EffectivePolicy | None:
        """Read `host` and `config`, which stay as they were where they are not given."""
        host, config = parent.child("host"), parent.child("config")
        if host is not None:
            self._host = self.host(host, self.folder)
        try:
            if config is not None:
                self._config = None
                self._config = config_of_document(config.node, self.source)
            if self._host is None or self._config is None:
                return None
            machine, offline = self._host.machine, self._host.offline
            policy = resolve(self._config, machine, offline=offline, source=self.source)
        except ConfigError as error:
            where = config or Field(join(parent.path, "config"), parent.node)
            self.problems.extend(_placed(error, where))
            return None
        managers = (*managers_beside_kubelet(self._config), *MANAGERS)
        return EffectivePolicy(machine, policy, managers)

    def _steps(self, item: Field) -> Iterator[Step]:
        self.entries(item)
        self.reject_unknown(item, (*_KINDS, *_BESIDE_ADMIT))
        entries = item.node.entries if isinstance(item.node, MappingNode) else {}
        kinds = [kind for kind in _KINDS if kind in entries]
        if len(kinds) != 1:
            self.reject(item, f"a step is one of {', '.join(_KINDS)}")
            return
        (kind,) = kinds
        if kind == "admit":
            yield from self._admissions(item)
            return
        for key in _BESIDE_ADMIT:
            if item.child(key) is not None:
                self.reject(item, f"{key} belongs to admit")
        value = item.child(kind)
        step: Step | None = None
        if kind == "restart":
            step = self._restart(item, value)
        elif value is None:
            self.reject(item, f"{kind} says nothing")
        elif kind == "start":
            step = self._start(value)
        elif (admit := self._earlier(value)) is not None:
            step = Remove(admit.name, admit.uid)
        if step is not None:
            yield step

    def _restart(self, item: Field, parts: Field | None) -> Restart | None:
        if parts is None:
            empty = MappingNode({}, item.node.line)
            parts = Field(join(item.path, "restart"), empty)
        self.entries(parts)
        self.reject_unknown(parts, ("host", "config"))
        rules = self._rules(parts)
        return None if rules is None else Restart(rules)

    def _start(self, value: Field) -> Start | None:
        self.entries(value)
        self.reject_unknown(value, ("pod", "container"))
        pod, container = value.child("pod"), value.child("container")
        if pod is None or container is None:
            self.reject(value, "pod and container are needed")
            return None
        admit, name = self._earlier(pod), self.text(container)
        if admit is None or name is None:
            return None
        names = [each.name for each in admit.pod.all_containers()]
        if name not in names:
            problem = f"the pod has no container {shown(name)}, only {', '.join(names)}"
            self.reject(container, problem)
        return Start(admit.name, admit.uid, name)

    def _earlier(self, where: Field) -> Admit | None:
        """Return the latest admission of the pod that a field names."""
        text = self.text(where)
        admit = None if text is None else self._known.get(text)
        if text is not None and admit is None:
            self.reject(where, f"no step before this one admits a pod {shown(text)}")
        return admit

    def _admissions(self, item: Field) -> Iterator[Admit]:
        value, times, given = map(item.child, ("admit", *_BESIDE_ADMIT))
        if value is None:
            self.reject(item, "admit needs a pod, or the name of a file with one")
            return
        number = self.integer(times, 1, _MOST_TIMES) if times is not None else None
        pod = self._pod(value)
        if pod is None:
            return
        if given is not None:
            if times is not None:
                self.reject(given, "the same devices cannot be given to several pods (times)")
            pod = self._with_devices(pod, given)
        for one in (pod,) if number is None else _copies(pod, number):
            admit = Admit(f"{one.namespace}/{one.name}", one.uid, one)
            self._known |= dict.fromkeys((one.uid, admit.name, one.name), admit)
            yield admit

    def _with_devices(self, pod: Pod, field: Field) -> Pod:
        """Return a pod to which the kubelet gave devices."""
        if self._config is not None and not self._config.agent.kubelet.enabled:
            self.reject(
                field,
                "set agent.kubelet.enabled to true in config: only a kubelet "
                "beside the agent gives devices",
            )
        self.reject_unknown(field, [container.name for container in pod.all_containers()])
        given = {
            container: tuple(self._given(resources))
            for container, resources in self.entries(field).items()
        }
        return replace(pod, given_devices=given)

    def _given(self, container: Field) -> Iterator[GivenDevice]:
        """Yield the devices of a container: the list of their NUMA nodes by id by resource."""
        for resource, devices in self.entries(container).items():
            for device, nodes in self.entries(devices).items():
                yield GivenDevice(resource, device, self.mask(nodes, "NUMA nodes"))

    def _pod(self, value: Field) -> Pod | None:
        pod_level = (self._config or Config()).gates.pod_level_resources
        if isinstance(value.node, MappingNode):
            try:
                return checked_pod(value.node, f"{self.source} {value.path}", pod_level=pod_level)
            except ManifestError as error:
                self.problems.extend(_placed(error, value))
                return None
        text = self.text(value)
        if text is None:
            return None
        path = self.folder / text
        try:
            content = read_bounded(path, DEFAULT_MAX_BYTES)
            return load_pod(content, f"{path} {value.path}", pod_level=pod_level)
        except OSError as error:
            self.reject(value, f"{path}: {error.strerror}")
        except ManifestError as error:
            for problem in error.problems:
                self.reject(value, f"{path}: {problem}")
        return None


def _copies(pod: Pod, times: int) -> Iterator[Pod]:
    for number in range(1, times + 1):
        yield replace(pod, name=f"{pod.name}-{number}", uid=f"{pod.uid}-{number}")


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
