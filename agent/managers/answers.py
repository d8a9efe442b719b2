"""What answers say of a decision: values of the core that the API has as they are."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Shortage(Struct, frozen=True):
    """A resource of which the node has too little left for a pod.

    `requested` is what other pods request, `allocatable` what all may request (None: the node does
    not offer the resource). The unit is millicores for `cpu`, else bytes, pods or devices.
    """

    resource: str
    asked: int
    allocatable: int | None
    requested: int


class AdviceKind(StrEnum):
    """What is changed: nothing, the cordon, the pod itself, other pods, or the policy."""

    #: Nothing: the pod would be admitted as it is.
    AGAIN = "again"
    UNCORDON = "uncordon"
    #: A larger pod-level budget, so that the containers that share it have something.
    BUDGET = "budget"
    #: Limits that equal requests, so that containers may have CPUs of their own.
    GUARANTEED = "guaranteed"
    REQUEST = "request"
    END = "end"
    POLICY = "policy"


class Advice(Struct, frozen=True):
    """One change with which the pod would be admitted: it was tried.

    `kind` is `again` (the pod would be admitted as it is), `request` (`amount` of `resource` in
    `container`, null: of the pod-level resources; CPUs in millicores), `end` (the pods of `uids`
    end) or `policy` (`key` of the configuration is `value`; `loss` is what the pod would not get).
    """

    #: An `AdviceKind`, or that of a later release.
    kind: str
    text: str
    container: str | None = None
    resource: str = ""
    #: CPUs in millicores, memory in bytes; of a budget that of the first resource.
    amount: int = 0
    uids: tuple[str, ...] = ()
    key: str = ""
    #: Of an uncordon, what is cordoned.
    value: str = ""
    loss: str = ""


class FreeCpus(Struct, frozen=True, rename="camel"):
    """The CPUs that may still be allocated exclusively.

    `wholeCores` are those in physical cores of which every CPU is free, `onOneNode` the most that
    one NUMA node has. `fragmentation` (0 to 1) is the share that one request on one node cannot get
    of what would fit one node: 1 - onOneNode / min(free, the most that a node has without pods).
    """

    free: int
    whole_cores: int
    on_one_node: int
    #: 0 on an empty host, and where nothing is free.
    fragmentation: float
