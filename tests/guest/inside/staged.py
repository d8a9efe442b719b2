"""Pods that start in stages: init containers one after the other, sidecars that stay, then apps.

KEP-5526 ("Handling Init Containers", pod scope; the paragraph before the container scope's table)
says which CPUs each of them has:

- an exclusive init container has a slice, which later containers use again;
- an exclusive sidecar has a slice for as long as the pod lives;
- a shared init container has the whole budget less the exclusive sidecars before it;
- a shared sidecar has what all exclusive containers, those of the apps too, leave of the budget;
- in the container scope all that share run in the node's shared pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tests.guest.inside.pods import E1, E2, P2, P4, SHARED, Exclusive, manifest, resources

if TYPE_CHECKING:
    from tests.guest.inside.pods import Placement


class Kind(StrEnum):
    """When a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Part:
    """One container and where it must land; it asks for the CPUs of its own that it must get.

    `asks` overrides that, for one that must not get what it asks for. `devices` are resources of
    which it asks for one each.
    """

    name: str
    kind: Kind
    placement: Placement
    asks: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        """The whole CPUs it asks for; 0 if it asks for nothing."""
        if self.asks is not None:
            return self.asks
        return self.placement.cpus if isinstance(self.placement, Exclusive) else 0

    @property
    def manifest(self) -> dict[str, object]:
        """The container of a manifest."""
        always = {"restartPolicy": "Always"} if self.kind is Kind.SIDECAR else {}
        amounts = resources(self.cpus, devices=self.devices)
        return {"name": self.name, "image": "example"} | always | amounts


@dataclass(frozen=True, slots=True)
class Staged:
    """One pod: its budget in CPUs (0: none) and its containers in the order of their start.

    Memory is 1 GiB for each CPU, or `gib`, the budget's memory. What is not the node's shared pool
    lies on `nodes` NUMA nodes.
    """

    name: str
    budget: int
    parts: tuple[Part, ...]
    gib: int = 0
    nodes: int = 1

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return f"uid-{self.name}"

    @property
    def manifest(self) -> dict[str, object]:
        """The pod as a manifest."""
        first = [part.manifest for part in self.parts if part.kind is not Kind.APP]
        apps = [part.manifest for part in self.parts if part.kind is Kind.APP]
        budget = resources(self.budget, f"{self.gib or self.budget}Gi")
        return manifest(self.name, self.uid, initContainers=first, containers=apps, **budget)


def apps(*placements: Placement) -> tuple[Part, ...]:
    """Return app containers that must land so."""
    return tuple(Part(f"app-{n}", Kind.APP, one) for n, one in enumerate(placements, 1))


INIT, SIDECAR, APP = Kind.INIT, Kind.SIDECAR, Kind.APP

#: Pod scope, an exclusive init container: all of its CPUs are in the pool that the apps share.
INIT_REUSED: Final = Staged(
    "init-reused",
    4,
    (Part("init", INIT, E2), Part("app-1", APP, P4), Part("app-2", APP, P4)),
)

#: Pod scope, all there are: of 5 CPUs the sidecar has 1, the app 2, and 2 are shared; a shared init
#: container runs on the 4 that the sidecar leaves.
ALL_STAGES: Final = Staged(
    "all-stages",
    5,
    (
        Part("init-exclusive", INIT, E2),
        Part("sidecar-exclusive", SIDECAR, E1),
        Part("init-shared", INIT, P4),
        Part("sidecar-shared", SIDECAR, P2),
        Part("app-exclusive", APP, E2),
        Part("app-shared", APP, P2),
    ),
)

#: Container scope: the sidecar is first, so that it does not take what the init container leaves.
IN_CONTAINER_SCOPE: Final = Staged(
    "container-stages",
    5,
    (
        Part("sidecar-exclusive", SIDECAR, E1),
        Part("init-exclusive", INIT, E2),
        Part("init-shared", INIT, SHARED),
        Part("sidecar-shared", SIDECAR, SHARED),
        Part("app-exclusive", APP, E2),
        Part("app-shared", APP, SHARED),
    ),
)
