"""The documents of maintenance: cordons, drains, and the level of the log."""

from __future__ import annotations

from msgspec import field

from agent.api.documents import Document


class CordonRequest(Document, frozen=True):
    """What to cordon or uncordon.

    `target` is a list of CPUs (`4-7`), of cores (`core:2`, as the map numbers them) or of NUMA
    nodes (`node:1`). `reason` is for people; uncordon ignores it.
    """

    target: str
    reason: str = ""


class CordonedPodDocument(Document, frozen=True):
    """A pod that still has something of what is cordoned: CPUs, nodes of memory, devices."""

    uid: str
    name: str
    namespace: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)


class CordonDocument(Document, frozen=True):
    """One cordon: CPUs or NUMA nodes as lists, why, and since when (Unix time)."""

    cpus: str
    nodes: str
    reason: str
    since: float


class CordonsDocument(Document, frozen=True):
    """All that is cordoned after a change, and which pods still have something of it.

    `cpus` are the online CPUs that are cordoned by themselves or with their node.
    """

    cordons: tuple[CordonDocument, ...]
    cpus: str
    shared_pool: str
    pods: tuple[CordonedPodDocument, ...]
    differences: tuple[str, ...] = ()


class DrainedPodDocument(Document, frozen=True):
    """One pod that would have to end.

    `outcome` is `fits` (`moved_cpus` and `moved_nodes` are what it would get elsewhere), `rejected`
    (`message` says why) or `unknown` (its specification does not follow from its allocation).
    """

    uid: str
    name: str
    namespace: str
    outcome: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    moved_cpus: str = ""
    moved_nodes: str = ""
    message: str = ""


class DrainDocument(Document, frozen=True):
    """What a drain would need; the pods are in the order in which they were tried together.

    `stay` is the number of pods that stay as they are. `shared_pool` and `free_cpus` are those
    after the drain, with the pods elsewhere that fit. `rejection` says why the cordon itself would
    be rejected, "" if it would not be.
    """

    cpus: str
    nodes: str
    pods: tuple[DrainedPodDocument, ...]
    stay: int
    shared_pool: str
    free_cpus: int
    rejection: str = ""


class LogLevelRequest(Document, frozen=True):
    """The level to log from now on; after `seconds` the configured one again (null: until then)."""

    level: str
    seconds: float | None = None


class LogLevelDocument(Document, frozen=True):
    """The level of the log, the configured one, and until when it differs (Unix time or null)."""

    level: str
    configured: str
    until: float | None = None
