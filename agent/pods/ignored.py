"""What a manifest says that has no effect here: warnings for its author.

A field of `v1.Pod` that only a cluster or a container runtime gives a meaning is listed with the
others in one warning; a key that no Pod has gets a warning with the nearest name. Fields that every
pod of a cluster has, or that start the containers' processes, are expected and not listed.

Source of the names: `v1.PodSpec`, `v1.Container` and `metav1.ObjectMeta` of Kubernetes v1.36.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.pods.lifetime import END, UNIT
from agent.pods.requirements import NEAR_NODES, REQUIRE
from agent.yaml import Field, MappingNode, Node, SequenceNode, guess, join, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: The annotations that the agent reads.
ANNOTATIONS: Final = frozenset({END, NEAR_NODES, REQUIRE, UNIT})
#: What an annotation that is meant for the agent has in its name.
_OURS: Final = "numawarden"

_METADATA: Final = _names(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers "
    "generateName generation labels managedFields name namespace ownerReferences resourceVersion "
    "selfLink uid"
)
_SPEC_EXPECTED: Final = _names(
    "containers dnsPolicy enableServiceLinks initContainers overhead preemptionPolicy priority "
    "resources restartPolicy schedulerName securityContext serviceAccount serviceAccountName "
    "terminationGracePeriodSeconds"
)
_SPEC_IGNORED: Final = _names(
    "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig ephemeralContainers "
    "hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets "
    "nodeName nodeSelector os priorityClassName readinessGates resourceClaims runtimeClassName "
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
        more = f" and {len(fields) - _LISTED} more" if len(fields) > _LISTED else ""
        listed = ", ".join(list(fields)[:_LISTED])
        warnings.append(f"ignored, as they have no meaning here: {listed}{more}")
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
