"""Cordons and drains: CPUs and NUMA nodes that an operator takes out of use."""

from __future__ import annotations

from msgspec import field

from agent.api.documents.document import Document


class CordonRequest(Document, frozen=True):
    """What to cordon or uncordon."""

    #: CPUs (`4-7`), cores as the map numbers them (`core:2`), or NUMA nodes (`node:1`).
    target: str
    #: For people; uncordon ignores it.
    reason: str = ""


class CordonsDocument(Document, frozen=True):
    """What is cordoned after a change, and which pods have something of it."""

    cordons: tuple[CordonDocument, ...]
    #: The online CPUs that are cordoned, by themselves or with their node.
    cpus: str
    shared_pool: str
    pods: tuple[CordonedPodDocument, ...]
    differences: tuple[str, ...] = ()


class CordonDocument(Document, frozen=True):
    """One cordon: CPUs, NUMA nodes, or both."""

    cpus: str
    nodes: str
    reason: str
    #: Unix time.
    since: float


class CordonedPodDocument(Document, frozen=True):
    """A pod that has something of what is cordoned."""

    uid: str
    name: str
    namespace: str
    cpus: str = ""
    #: The nodes of its memory.
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)


class DrainDocument(Document, frozen=True):
    """What a drain would need."""

    cpus: str
    nodes: str
    #: In the order in which they were tried together.
    pods: tuple[DrainedPodDocument, ...]
    #: How many pods stay as they are.
    stay: int
    #: The node's shared pool after the drain, with the pods that fit elsewhere.
    shared_pool: str
    #: How many CPUs are free after the drain, with the pods that fit elsewhere.
    free_cpus: int
    #: Why the cordon itself would be rejected; "" if it would not be.
    rejection: str = ""


class DrainedPodDocument(Document, frozen=True):
    """A pod that would have to end."""

    uid: str
    name: str
    namespace: str
    #: `fits`, `rejected`, or `unknown`: its specification does not follow from its allocation.
    outcome: str
    cpus: str = ""
    nodes: str = ""
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: What a pod that fits would get elsewhere.
    moved_cpus: str = ""
    moved_nodes: str = ""
    #: Why the pod would be rejected, or is not known.
    message: str = ""
