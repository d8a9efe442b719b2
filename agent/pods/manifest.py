"""Reading manifests: a defaulted and validated pod with warnings, or all mistakes of the manifest.

What a manifest says that has no effect here is a warning for its author. A field of `v1.Pod` that
only a cluster or a container runtime gives a meaning is listed with the others in one warning; a
key that no Pod has gets a warning with the nearest name. Fields that every pod of a cluster has, or
that start the containers' processes, are expected and not listed. Source of the names:
`v1.PodSpec`, `v1.Container` and `metav1.ObjectMeta` of Kubernetes v1.36.
"""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import (
    ANNOTATIONS,
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    REQUIRE,
    SYSTEMS,
    Container,
    ContainerKind,
    ManifestError,
    Pod,
    QosClass,
    Quality,
    Resources,
    identity_of,
    unknown_qualities,
)
from agent.pods.quantity import Quantity, QuantityError
from agent.pods.requests import aggregate
from agent.pods.validation import assumed_requests, find_problems
from agent.text import some_of
from agent.yaml import (
    DEFAULT_MAX_BYTES,
    Field,
    MappingNode,
    Mistake,
    Node,
    Plain,
    Reader,
    SequenceNode,
    UnreadableError,
    from_plain,
    guess,
    join,
    places,
    plain,
    read_document,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What an annotation that is meant for the agent has in its name.
_OURS: Final = "numawarden"

_METADATA: Final = _names(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers "
    "generateName generation labels managedFields name namespace ownerReferences resourceVersion "
    "selfLink uid"
)
_SPEC_EXPECTED: Final = _names(
    "containers dnsPolicy enableServiceLinks initContainers os overhead preemptionPolicy priority "
    "resources restartPolicy schedulerName securityContext serviceAccount serviceAccountName "
    "terminationGracePeriodSeconds"
)
_SPEC_IGNORED: Final = _names(
    "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig ephemeralContainers "
    "hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets "
    "nodeName nodeSelector priorityClassName readinessGates resourceClaims runtimeClassName "
    "schedulingGates setHostnameAsFQDN shareProcessNamespace subdomain tolerations "
    "topologySpreadConstraints volumes workloadRef"
)
_CONTAINER_EXPECTED: Final = _names(
    "args command env envFrom image imagePullPolicy name ports resources restartPolicy "
    "securityContext stdin stdinOnce terminationMessagePath terminationMessagePolicy tty "
    "workingDir"
)
_CONTAINER_IGNORED: Final = _names(
    "lifecycle livenessProbe readinessProbe resizePolicy restartPolicyRules startupProbe "
    "volumeDevices volumeMounts"
)
_TOP: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
#: How many fields, and how many unknown keys, are listed.
_LISTED: Final = 12
#: How similar a known name has to be to be named: "numaPolicy" is not meant as "dnsPolicy".
_NEAR: Final = 0.8


def ignored_parts(document: Node) -> tuple[str, ...]:
    """Return warnings about the fields of a valid manifest that are not read.

    One for each unknown key or annotation, at most a dozen, and one for all other fields together.
    """
    fields, unknown = dict.fromkeys(_ignored(document)), list(_unknown(document))
    # Only of those that are listed is the nearest name looked for: a search takes its time.
    warnings = [
        f"{each.what}{guess(each.key, sorted(each.known), cutoff=_NEAR)}"
        for each in unknown[:_LISTED]
    ]
    if len(unknown) > _LISTED:
        warnings.append(f"{len(unknown) - _LISTED} more keys are ignored")
    metadata = Field("", document).child("metadata")
    if metadata is not None and metadata.child("deletionTimestamp") is not None:
        warnings.append("metadata.deletionTimestamp is ignored: the pod is admitted as a new one")
    if fields:
        listed = some_of([*fields], _LISTED)
        warnings.append(f"ignored, as they have no meaning here: {listed}")
    return tuple(warnings)


def _ignored(document: Node) -> Iterator[str]:
    """Yield the known fields without effect; one for all containers."""
    spec = Field("", document).child("spec")
    for key in _keys(spec):
        if key in _SPEC_IGNORED:
            yield f"spec.{key}"
    for kind, container in _containers(spec):
        for key in _keys(container):
            if key in _CONTAINER_IGNORED:
                yield f"spec.{kind}[*].{key}"
        resources = container.child("resources")
        if resources is not None and resources.child("claims") is not None:
            yield f"spec.{kind}[*].resources.claims"


class _Unknown(NamedTuple):
    """A key that is not one of the known ones, and the warning about it."""

    key: str
    known: frozenset[str]
    what: str


def _unknown(document: Node) -> Iterator[_Unknown]:
    """Yield the keys that are no field of a Pod, and the annotations of ours that are not known."""
    root = Field("", document)
    metadata, spec = root.child("metadata"), root.child("spec")
    yield from _unknown_keys(root, _TOP)
    yield from _unknown_keys(metadata, _METADATA)
    for key in _keys(None if metadata is None else metadata.child("annotations")):
        if _OURS in key.lower() and key not in ANNOTATIONS:
            what = f"annotation {shown(key)} is ignored: the agent does not know it"
            yield _Unknown(key, ANNOTATIONS, what)
    yield from _unknown_keys(spec, _SPEC_EXPECTED | _SPEC_IGNORED)
    for _, container in _containers(spec):
        yield from _unknown_keys(container, _CONTAINER_EXPECTED | _CONTAINER_IGNORED)


def _unknown_keys(where: Field | None, known: frozenset[str]) -> Iterator[_Unknown]:
    for key in _keys(where):
        if where is not None and key not in known:
            place = join(where.path, key)
            yield _Unknown(key, known, f"{place} is ignored: a Pod has no such field")


def _containers(spec: Field | None) -> Iterator[tuple[str, Field]]:
    for kind in ("initContainers", "containers"):
        listed = None if spec is None else spec.child(kind)
        if listed is not None and isinstance(listed.node, SequenceNode):
            for index, node in enumerate(listed.node.items):
                yield kind, Field(f"{listed.path}[{index}]", node)


def _keys(where: Field | None) -> Iterator[str]:
    """Yield the keys of a mapping that have a value."""
    if where is not None and isinstance(where.node, MappingNode):
        yield from (key for key in where.node.entries if where.child(key) is not None)


DEFAULT_NAMESPACE: Final = "default"
#: The source name of a manifest that comes over the API, in errors and in the uid of a pod without
#: one.
API_SOURCE: Final = "manifest"
_MAX_CONTAINERS: Final = 1000

#: Fields that are read here; a key similar to one of them is reported as a typing error.
_READ_IN_SPEC: Final = ("containers", "initContainers", "resources", "overhead")
_READ_IN_CONTAINER: Final = ("name", "resources", "restartPolicy")
#: Fields of v1.PodSpec and v1.Container that resemble them and are ignored on purpose.
_NEIGHBOURS: Final = frozenset(
    {"ephemeralContainers", "resourceClaims", "resizePolicy", "restartPolicyRules", "restartPolicy"}
)
_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


class Manifest(Struct, frozen=True):
    """A manifest as read: its pod, and warnings about what in it has no effect."""

    pod: Pod
    warnings: tuple[str, ...]


def load_pod(
    text: str | bytes, source: str, *, max_bytes: int = DEFAULT_MAX_BYTES, pod_level: bool = True
) -> Pod:
    """Return the pod of a manifest, as `load_manifest`."""
    return load_manifest(text, source, max_bytes=max_bytes, pod_level=pod_level).pod


def load_manifest(
    text: str | bytes, source: str, *, max_bytes: int = DEFAULT_MAX_BYTES, pod_level: bool = True
) -> Manifest:
    """Return the one v1.Pod of a YAML or JSON text, defaulted and validated.

    `source` names the text in errors and takes part in the uid of a pod that states none.
    `pod_level` is the gate PodLevelResources. Raises `ManifestError` with every mistake, and with
    the pod's uid, name and namespace where they can be read.
    """
    try:
        document = read_document(text, max_bytes=max_bytes)
    except UnreadableError as error:
        raise ManifestError(source, (error.problem,)) from error
    problems = list(_kind_problems(Field("", document)))
    if problems:
        raise ManifestError(source, tuple(problems), identity_of(document, DEFAULT_NAMESPACE))
    try:
        pod = _checked_pod(document, source, pod_level=pod_level)
    except ManifestError as error:
        error.identity = identity_of(document, DEFAULT_NAMESPACE)
        raise
    return Manifest(pod, ignored_parts(document))


def pod_from_document(
    value: Plain, source: str, *, defaults: bool = True, pod_level: bool = True
) -> Pod:
    """Return the validated pod of a JSON value that need not state apiVersion and kind.

    With `defaults` False the pod is taken as it stands. Raises `ManifestError` with every mistake.
    """
    try:
        document = from_plain(value)
    except RecursionError as error:
        raise ManifestError(source, (Mistake("", "values are nested too deep"),)) from error
    return _checked_pod(document, source, defaults=defaults, pod_level=pod_level)


def _checked_pod(
    document: Node, source: str, *, defaults: bool = True, pod_level: bool = True
) -> Pod:
    """Return the validated pod of a document that need not state apiVersion and kind.

    With `defaults` False the pod is taken as it stands. Raises `ManifestError` with every mistake.
    """
    pod = read_pod(document, source)
    assumed = frozenset(assumed_requests(pod))
    if defaults:
        pod = apply_defaults(pod, pod_level_resources=pod_level)
    problems = [problem for problem in find_problems(pod) if problem.path not in assumed]
    if problems:
        lines = places(document, [problem.path for problem in problems])
        placed = (replace(problem, line=lines[problem.path]) for problem in problems)
        raise ManifestError(source, _in_order(placed))
    return pod


def read_pod(document: Node, source: str) -> Pod:
    """Return the pod as written: neither defaulted nor validated, but well typed.

    Raises `ManifestError` on missing fields and wrong types.
    """
    reader = Reader()
    root = Field("", document)
    reader.entries(root)
    pod = _Manifest(reader, source).pod(root) if not reader.problems else None
    if pod is None or reader.problems:
        raise ManifestError(source, _in_order(reader.problems))
    return pod


def derived_uid(document: Node, source: str) -> str:
    """Return the uid of a pod that states none: 32 hex digits of a hash of source and content.

    The same text from the same source has the same uid; another spec is another pod, as for the
    static pods of a kubelet.
    """
    content = json.dumps(plain(document), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{source}\0{content}".encode()).hexdigest()[:32]


def _in_order(problems: Iterator[Mistake] | list[Mistake]) -> tuple[Mistake, ...]:
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0))


def _kind_problems(root: Field) -> Iterator[Mistake]:
    reader = Reader()
    reader.entries(root)
    yield from reader.problems
    if reader.problems:
        return
    for key, desired in (("apiVersion", "v1"), ("kind", "Pod")):
        field = root.child(key)
        found = reader.text(field) if field is not None else None
        if found == desired:
            continue
        line = field.node.line if field is not None else root.node.line
        was = f"found {shown(found)}" if found is not None else "it is missing"
        yield Mistake(key, f"expected {desired}, {was}; {_instead(root)}", line)


def _instead(root: Field) -> str:
    """Return what to give in place of a document that is not a pod."""
    field = root.child("kind")
    kind = Reader().text(field) if field is not None else None
    if (kind or "").endswith("List"):
        return "give the pods of the list one by one, each in a manifest of its own"
    if (kind or "").lower() in ("pod", "pods"):
        return 'did you mean "Pod"?'
    spec = root.child("spec")
    if spec is not None and spec.child("template") is not None:
        return "give an ordinary Pod manifest, such as that of its template"
    return "give an ordinary Pod manifest"


class _Manifest:
    """Reads the parts of one manifest; mistakes go to the reader."""

    def __init__(self, reader: Reader, source: str) -> None:
        self._reader = reader
        self._source = source

    def pod(self, root: Field) -> Pod | None:
        metadata, spec = root.child("metadata"), root.child("spec")
        for key, part in (("metadata", metadata), ("spec", spec)):
            if part is None:
                self._reader.reject(root, f"{key} is missing; give an ordinary Pod manifest")
        if metadata is None or spec is None:
            return None
        if (labels := metadata.child("labels")) is not None:
            for entry in self._reader.entries(labels).values():
                self._reader.text(entry)
        self._reject_slips(spec, _READ_IN_SPEC)
        return Pod(
            uid=self._text(metadata, "uid") or derived_uid(root.node, self._source),
            name=self._required(metadata, "name"),
            namespace=self._text(metadata, "namespace") or DEFAULT_NAMESPACE,
            containers=self._app_containers(spec),
            init_containers=self._init_containers(spec),
            resources=self._resources(spec, of_pod=True),
            status_qos=self._status_qos(root),
            annotations=self._annotations(metadata),
            overhead=self._amounts(spec, "overhead"),
            os=self._os(spec),
        )

    def _required(self, parent: Field, key: str) -> str:
        if parent.child(key) is None:
            self._reader.entries(parent)
            generated = key == "name" and parent.child("generateName") is not None
            why = "; generateName is not used here, so state a name" if generated else ""
            self._reader.reject(parent, f"{key} is missing{why}")
        return self._text(parent, key) or ""

    def _text(self, parent: Field, key: str) -> str | None:
        field = parent.child(key)
        if field is None:
            return None
        text = self._reader.text(field)
        if text == "":
            self._reader.reject(field, "it is empty; leave it out or give a value")
        return text

    def _annotations(self, metadata: Field) -> Mapping[str, str]:
        field = metadata.child("annotations")
        entries = self._reader.entries(field) if field is not None else {}
        texts = {key: self._reader.text(entry) for key, entry in entries.items()}
        for name in unknown_qualities(texts.get(REQUIRE) or ""):
            known = ", ".join(Quality)
            self._reader.reject(entries[REQUIRE], f"{shown(name)} is not one of {known}")
        return MappingProxyType({key: text for key, text in texts.items() if text is not None})

    def _os(self, spec: Field) -> str:
        stated = spec.child("os")
        field = stated.child("name") if stated is not None else None
        return (self._reader.choice(field, SYSTEMS) or "") if field is not None else ""

    def _status_qos(self, root: Field) -> QosClass | None:
        status = root.child("status")
        field = status.child("qosClass") if status is not None else None
        if field is None:
            return None
        name = self._reader.choice(field, QosClass)
        return QosClass(name) if name is not None else None

    def _app_containers(self, spec: Field) -> tuple[Container, ...]:
        field = spec.child("containers")
        apps = tuple(self._items(field, "containers")) if field is not None else ()
        if field is None or (not apps and not self._reader.problems):
            self._reader.reject(field or spec, "containers: a pod has at least one container")
        return tuple(self._container(item, ContainerKind.APP) for item in apps)

    def _init_containers(self, spec: Field) -> tuple[Container, ...]:
        field = spec.child("initContainers")
        items = self._items(field, "initContainers") if field is not None else ()
        return tuple(self._container(item, self._init_kind(item)) for item in items)

    def _items(self, field: Field, what: str) -> tuple[Field, ...]:
        items = tuple(self._reader.items(field))
        if len(items) <= _MAX_CONTAINERS:
            return items
        self._reader.reject(field, f"{len(items)} {what} are more than {_MAX_CONTAINERS}")
        return ()

    def _init_kind(self, item: Field) -> ContainerKind:
        field = item.child("restartPolicy")
        policy = self._reader.choice(field, _RESTART_POLICIES) if field is not None else None
        return ContainerKind.SIDECAR if policy == "Always" else ContainerKind.INIT

    def _container(self, item: Field, kind: ContainerKind) -> Container:
        self._reject_slips(item, _READ_IN_CONTAINER)
        return Container(
            name=self._required(item, "name"),
            kind=kind,
            resources=self._resources(item, of_pod=False) or Resources(),
        )

    def _resources(self, parent: Field, *, of_pod: bool) -> Resources | None:
        field = parent.child("resources")
        if field is None:
            return None
        self._reader.entries(field)
        claims = () if of_pod else ("claims",)
        self._reader.reject_unknown(field, ("requests", "limits", *claims))
        return Resources(self._amounts(field, "requests"), self._amounts(field, "limits"))

    def _amounts(self, parent: Field, key: str) -> Mapping[str, Quantity]:
        field = parent.child(key)
        entries = self._reader.entries(field) if field is not None else {}
        amounts = {name: self._quantity(entry) for name, entry in entries.items()}
        return MappingProxyType({name: q for name, q in amounts.items() if q is not None})

    def _quantity(self, field: Field) -> Quantity | None:
        text = self._reader.amount(field)
        if text is None:
            return None
        try:
            return Quantity.parse(text)
        except QuantityError as error:
            self._reader.reject(field, f"{shown(error.text)} is not a quantity: {error.reason}")
            return None

    def _reject_slips(self, parent: Field, read: tuple[str, ...]) -> None:
        for key, entry in self._reader.entries(parent).items():
            hint = guess(key, read, cutoff=0.85) if key not in _NEIGHBOURS else ""
            if hint and key not in read:
                self._reader.reject(entry, f"unknown field{hint}")


_OVERCOMMITTABLE: Final = (CPU, MEMORY)


def apply_defaults(pod: Pod, *, pod_level_resources: bool = True) -> Pod:
    """Return the pod with every default set (idempotent).

    Amounts are rounded up to thousandths. A container's request follows from its limit. Pod-level
    requests of cpu and memory follow from what the containers request together; all that is still
    missing follows from the pod-level limits, and those of huge pages from the containers' limits.
    `pod_level_resources` is the gate PodLevelResources.
    """
    defaulted = replace(
        pod,
        containers=tuple(map(_defaulted, pod.containers)),
        init_containers=tuple(map(_defaulted, pod.init_containers)),
    )
    if pod.resources is None:
        return defaulted
    resources = Resources(_rounded(pod.resources.requests), _rounded(pod.resources.limits))
    if pod_level_resources:
        resources = _pod_level_defaults(defaulted, resources)
    return replace(defaulted, resources=resources)


def _defaulted(container: Container) -> Container:
    limits = _rounded(container.resources.limits)
    requests = limits | _rounded(container.resources.requests)
    return replace(container, resources=Resources(requests, limits))


def _pod_level_defaults(pod: Pod, stated: Resources) -> Resources:
    containers = pod.all_containers()
    limits = dict(stated.limits)
    for name, amount in aggregate(pod, [each.resources.limits for each in containers]).items():
        if name.startswith(HUGEPAGES_PREFIX) and name not in stated.requests:
            limits.setdefault(name, amount)
    if not limits:
        return stated
    requests = dict(stated.requests)
    for name, amount in aggregate(pod, [each.resources.requests for each in containers]).items():
        if name in _OVERCOMMITTABLE:
            requests.setdefault(name, amount)
    for name, amount in limits.items():
        requests.setdefault(name, amount)
    return Resources(requests, limits)


def _rounded(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount.rounded_to_milli() for name, amount in amounts.items()}
