"""The pods of KEP-5526's documents, and how the documents say each container must land.

The pod scope's examples 1 to 3, the container scope's examples 1 and 2, and the rows of the table
of each scope ("Spec", "Hint Generation", "Allocation"), with the memory that makes a container of
the table's CPUs Guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Exclusive:
    """CPUs of its own, no quota, memory of its node."""

    cpus: int


@dataclass(frozen=True, slots=True)
class PodShared:
    """The pod's shared pool, which is this large; the quota is the pod's."""

    cpus: int


@dataclass(frozen=True, slots=True)
class NodeShared:
    """The node's shared pool."""


Placement = Exclusive | PodShared | NodeShared
SHARED: Final = NodeShared()


@dataclass(frozen=True, slots=True)
class Example:
    """One pod: its budget and its containers' CPUs (0: none set), and where they must land.

    Memory is 1 GiB for each CPU, as in the documents. `placements` is None for a pod that must
    be rejected.
    """

    name: str
    budget: int
    cpus: tuple[int, ...]
    placements: tuple[Placement, ...] | None

    @property
    def uid(self) -> str:
        """The pod's uid; a fixed one, of the usual form."""
        number = sum(ord(letter) << (8 * index % 40) for index, letter in enumerate(self.name))
        return f"5526cafe-0000-4000-8000-{number & 0xFFFFFFFFFFFF:012x}"

    @property
    def containers(self) -> tuple[str, ...]:
        """The containers' names, in order."""
        return tuple(f"container-{number}" for number in range(1, len(self.cpus) + 1))

    @property
    def manifest(self) -> dict[str, object]:
        """The pod as a manifest."""
        containers = [
            {"name": name, "image": "example-image"} | resources(cpus)
            for name, cpus in zip(self.containers, self.cpus, strict=True)
        ]
        return manifest(self.name, self.uid, containers=containers, **resources(self.budget))


def manifest(name: str, uid: str, **spec: object) -> dict[str, Any]:
    """Return a pod of the namespace `default`."""
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def resources(cpus: int, memory: str = "", devices: Iterable[str] = ()) -> dict[str, object]:
    """Return requests and limits of a container or pod: nothing for 0 CPUs and no device.

    Memory is 1 GiB for each CPU unless it is given. Of each resource of `devices` it is one.
    """
    amounts = dict.fromkeys(devices, "1")
    if cpus:
        amounts |= {"cpu": str(cpus), "memory": memory or f"{cpus}Gi"}
    return {"resources": {"requests": amounts, "limits": amounts}} if amounts else {}


E3, E2, E1 = Exclusive(3), Exclusive(2), Exclusive(1)
P5, P4, P2 = PodShared(5), PodShared(4), PodShared(2)

POD_SCOPE_EXAMPLES: Final = (
    Example("pod-scope-shared", 4, (0, 0, 0), (P4, P4, P4)),
    Example("pod-scope-mixed", 4, (2, 0, 0), (E2, P2, P2)),
    Example("pod-scope-admission-failure", 5, (3, 2, 0), None),
)
POD_SCOPE: Final = (
    *POD_SCOPE_EXAMPLES,
    Example("pod-scope-no-budget", 0, (3, 1, 1), (E3, E1, E1)),
    Example("pod-scope-all-guaranteed", 5, (3, 1, 1), (E3, E1, E1)),
    Example("pod-scope-some-guaranteed", 5, (3, 0, 0), (E3, P2, P2)),
    Example("pod-scope-none-guaranteed", 5, (0, 0, 0), (P5, P5, P5)),
)

CONTAINER_SCOPE_EXAMPLES: Final = (
    Example("container-scope-mixed", 4, (2, 0, 0), (E2, SHARED, SHARED)),
    Example("container-scope-pod-only", 4, (0, 0, 0), (SHARED, SHARED, SHARED)),
)
CONTAINER_SCOPE: Final = (
    *CONTAINER_SCOPE_EXAMPLES,
    Example("container-scope-no-budget", 0, (3, 1, 1), (E3, E1, E1)),
    Example("container-scope-all-guaranteed", 5, (3, 1, 1), (E3, E1, E1)),
    Example("container-scope-some-guaranteed", 5, (3, 0, 0), (E3, SHARED, SHARED)),
    Example("container-scope-none-guaranteed", 5, (0, 0, 0), (SHARED, SHARED, SHARED)),
)

#: A pod that asks for nothing: it must always have what is left of the node.
BACKGROUND: Final = Example("background", 0, (0,), (SHARED,))
