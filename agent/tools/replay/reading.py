"""From a document to the sequence that it describes, or to all its mistakes (`docs/replay.md`).

A configuration or a pod that the agent would reject is a mistake. The host is a regular shape, an
unpacked capture, or all CPUs and nodes by row; a sequence may also begin with what a running agent
has: its machine, policy and allocations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.config.kinds import bytes_at, quantity_at
from agent.config.load import config_of_document, load_config
from agent.config.model import Config, ConfigError
from agent.config.resolve import managers_beside_kubelet, resolve
from agent.files import read_bounded
from agent.managers.cpu.topology import CpuTopology, CpuTopologyError
from agent.managers.machine import Machine, MachineNode
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.pods.manifest import API_SOURCE, checked_pod, load_pod
from agent.pods.model import GivenDevice, ManifestError
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.state.checkpoint import decode
from agent.tools.replay.play import Admit, Remove, ReplaySequence, Restart, Start
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
from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.discover import discover
from sysfs.files import SysfsError
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.api.views import SnapshotDocument
    from agent.pods.model import Pod
    from agent.tools.replay.play import Step
    from agent.yaml import Node
    from sysfs.host import Host


_HOST_KINDS: Final = ("shape", "root", "rows")
#: The numbers of a shape: key, keyword of `regular_host`, default, most.
_NUMBERS: Final = (
    ("packages", "packages", 2, 64),
    ("nodesPerPackage", "nodes_per_package", 1, 16),
    ("coresPerNode", "cores_per_node", 4, 512),
    ("threads", "threads", 2, 8),
    ("uncoresPerNode", "uncores_per_node", 1, 64),
)
_SHAPE_KEYS: Final = (
    *(key for key, *_ in _NUMBERS),
    "memory",
    "hugepages",
    "adjacentThreads",
    "offline",
    "memoryOnlyNodes",
)
_NODE_KEYS: Final = ("id", "memory", "hugepages", "distances")
_MOST_NODES: Final = 64
_MOST_CPUS: Final = 8192
_MOST_MEMORY: Final = 1 << 60
_MOST_PAGES: Final = 1 << 40
_DEFAULT_MEMORY: Final = 16 << 30
_LONGEST_ROW: Final = 5


class DescribedHost(Struct, frozen=True):
    """A machine, and the CPUs that it has but that do not run."""

    machine: Machine
    offline: Mask = EMPTY

    @classmethod
    def of(cls, host: Host) -> DescribedHost:
        """Return a host as the managers see it."""
        return cls(Machine.of(host), host.offline)


class HostReader(Reader):
    """Reads `host`; paths are relative to the folder of the file."""

    def host(self, field: Field, folder: Path) -> DescribedHost | None:
        """Return the described host, None beside the mistakes that keep it from being one."""
        before = len(self.problems)
        self.entries(field)
        self.reject_unknown(field, _HOST_KINDS)
        kinds = [child for child in map(field.child, _HOST_KINDS) if child is not None]
        if len(kinds) != 1:
            self.reject(field, f"give exactly one of {', '.join(_HOST_KINDS)}")
            return None
        try:
            host = self._by_kind(field, kinds[0], folder)
        except (CpuTopologyError, SysfsError, OSError) as error:
            self.reject(kinds[0], str(error))
            return None
        return host if len(self.problems) == before else None

    def _by_kind(self, field: Field, kind: Field, folder: Path) -> DescribedHost | None:
        if field.child("rows") is not None:
            return self._rows(kind)
        host = self._shape(kind) if field.child("shape") is not None else self._root(kind, folder)
        return DescribedHost.of(host) if host is not None else None

    def _root(self, field: Field, folder: Path) -> Host | None:
        text = self.text(field)
        if text is None:
            return None
        root = folder / text
        if not root.is_dir():
            self.reject(field, f"{root} is not a directory with an unpacked capture")
            return None
        return discover(root, devices=False)

    def _shape(self, field: Field) -> Host | None:
        self.entries(field)
        self.reject_unknown(field, _SHAPE_KEYS)
        numbers = {
            keyword: self._number(field, key, default, most)
            for key, keyword, default, most in _NUMBERS
        }
        memory_only = tuple(self._sizes(field.child("memoryOnlyNodes")))
        nodes = numbers["packages"] * numbers["nodes_per_package"]
        cpus = nodes * numbers["cores_per_node"] * numbers["threads"]
        if nodes + len(memory_only) > _MOST_NODES or cpus > _MOST_CPUS:
            most = f"{_MOST_NODES} NUMA nodes and {_MOST_CPUS} CPUs"
            self.reject(field, f"{nodes} nodes with {cpus} CPUs are more than {most}")
            return None
        host = regular_host(
            memory_bytes=self._memory(field, _DEFAULT_MEMORY),
            hugepages=self._hugepages(field).items(),
            adjacent_threads=self._flag(field, "adjacentThreads"),
            **numbers,
        )
        return self._altered(field, host, memory_only)

    def _altered(self, field: Field, host: Host, memory_only: tuple[int, ...]) -> Host:
        offline = self.mask(field.child("offline"))
        if offline - host.online:
            self.reject(field, f"offline names CPUs {offline - host.online} that it does not have")
        return with_memory_only_nodes(with_offline(host, offline & host.online), memory_only)

    def _rows(self, field: Field) -> DescribedHost | None:
        self.entries(field)
        self.reject_unknown(field, ("cpus", "nodes", "offline"))
        before = len(self.problems)
        cpus, nodes = field.child("cpus"), field.child("nodes")
        if cpus is None or nodes is None:
            self.reject(field, "cpus and nodes are needed")
            return None
        rows = [self._row(item) for item in self.items(cpus)]
        found = tuple(self._nodes(nodes))
        for row in rows:
            if row[3] not in {node.id for node in found}:
                self.reject(cpus, f"CPU {row[0]} is in node {row[3]}, which is not listed in nodes")
        if len(self.problems) > before:
            return None
        return DescribedHost(
            Machine(CpuTopology.from_rows(rows), found), self.mask(field.child("offline"))
        )

    def _row(self, item: Field) -> tuple[int, int, int, int, int]:
        numbers = [self.integer(number, -1, MAX_ID) for number in self.items(item)]
        if len(numbers) not in (_LONGEST_ROW - 1, _LONGEST_ROW):
            self.reject(item, "a CPU is [cpu, core, package, node] or [..., node, uncore cache]")
            return 0, 0, 0, 0, -1
        cpu, core, package, node, *uncore = (-1 if number is None else number for number in numbers)
        return cpu, core, package, node, uncore[0] if uncore else -1

    def _nodes(self, field: Field) -> Iterable[MachineNode]:
        items = list(self.items(field))
        if len(items) > _MOST_NODES:
            self.reject(field, f"{len(items)} nodes are more than {_MOST_NODES}")
            return
        ids = [self._node_id(item) for item in items]
        for item, number in zip(items, ids, strict=True):
            self.reject_unknown(item, _NODE_KEYS)
            if ids.count(number) > 1:
                self.reject(item, f"node {number} is listed twice")
            yield MachineNode(
                id=number,
                memory_bytes=self._memory(item, 0),
                hugepages=self._hugepages(item),
                distances=self._distances(item, ids),
            )

    def _node_id(self, item: Field) -> int:
        self.entries(item)
        number = item.child("id")
        if number is None:
            self.reject(item, "id is missing")
            return 0
        return self.integer(number, 0, MAX_ID) or 0

    def _distances(self, item: Field, ids: list[int]) -> dict[int, int]:
        field = item.child("distances")
        if field is None:
            return {}
        found = [self.integer(number, 1, 255) or 0 for number in self.items(field)]
        if len(found) != len(ids):
            self.reject(field, f"{len(found)} distances, give one to each of {len(ids)} nodes")
            return {}
        return dict(zip(ids, found, strict=True))

    def _hugepages(self, parent: Field) -> dict[int, int]:
        """Return the numbers of pages by size in bytes (`2Mi: 512`)."""
        field = parent.child("hugepages")
        pools: dict[int, int] = {}
        for text, entry in (self.entries(field) if field is not None else {}).items():
            size = _bytes(text)
            if size <= 0:
                self.reject(entry, f"{shown(text)} is not a page size such as 2Mi")
            pools[size] = self.integer(entry, 0, _MOST_PAGES) or 0
        return pools

    def _memory(self, parent: Field, default: int) -> int:
        field = parent.child("memory")
        size = None if field is None else bytes_at(self, field, 0, _MOST_MEMORY)
        return default if size is None else size

    def _sizes(self, field: Field | None) -> Iterable[int]:
        for item in self.items(field) if field is not None else ():
            yield (quantity_at(self, item) or ZERO).value

    def _number(self, parent: Field, key: str, default: int, most: int) -> int:
        field = parent.child(key)
        number = self.integer(field, 1, most) if field is not None else default
        return default if number is None else number

    def _flag(self, parent: Field, key: str) -> bool:
        field = parent.child(key)
        return field is not None and self.boolean(field) is True

    def mask(self, field: Field | None, of: str = "CPUs") -> Mask:
        """Return the list of a field (a set of CPUs or NUMA nodes), empty without one."""
        text = self.amount(field) if field is not None else None
        if field is None or text is None:
            return EMPTY
        try:
            return Mask.parse(text)
        except ValueError as error:
            self.reject(field, f"{shown(text)} is not a list of {of} such as 0-1,8: {error}")
            return EMPTY


def _bytes(text: str) -> int:
    """Return the bytes that a quantity names, 0 where the text is none."""
    try:
        return Quantity.parse(text).as_int64() or 0
    except QuantityError:
        return 0


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


NAME: Final = "the agent's host"
#: What errors call the two documents that the agent sends.
_CONFIG: Final = "configuration of the agent"
_CHECKPOINT: Final = Path("checkpoint of the agent")


def live_sequence(
    snapshot: SnapshotDocument,
    manifests: Iterable[tuple[Path, bytes]],
    settings: Sequence[str] = (),
) -> ReplaySequence:
    """Return the admission of the pods of manifests, one after the other, as the agent would.

    A pod has the devices that the kubelet beside the agent gave to the pod of its name.
    `settings` are `key=value` texts that are laid over the agent's configuration. A pod without a
    uid has the one that the API would give it. Raises `ConfigError` for a configuration that is
    wrong or does not fit the machine, `ReplayError` for a manifest, `UnusableCheckpointError` for
    a checkpoint of another release, `CpuTopologyError`.
    """
    machine = snapshot.machine()
    config = load_config(snapshot.config, _CONFIG, settings)
    policy = resolve(config, machine, offline=Mask.parse(snapshot.offline), source=_CONFIG)
    rules = EffectivePolicy(machine, policy, (*managers_beside_kubelet(config), *MANAGERS))
    pod_level = config.gates.pod_level_resources
    steps = tuple(
        (number, _admit(snapshot, path, content, pod_level=pod_level))
        for number, (path, content) in enumerate(manifests)
    )
    ledger = decode(bytes(snapshot.checkpoint), _CHECKPOINT).ledger
    return ReplaySequence(NAME, rules, steps, ledger)


def _admit(snapshot: SnapshotDocument, path: Path, content: bytes, *, pod_level: bool) -> Admit:
    try:
        pod = load_pod(content, API_SOURCE, pod_level=pod_level)
    except ManifestError as error:
        raise ReplayError(str(path), error.problems) from error
    given = replace(pod, given_devices=snapshot.given(pod))
    return Admit(f"{pod.namespace}/{pod.name}", pod.uid, given)
