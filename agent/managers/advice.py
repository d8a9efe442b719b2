"""Advice: a change with which a rejected pod would be admitted, since `trials` tried it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class AdviceKind(StrEnum):
    """What the advice changes."""

    #: Nothing: by now the pod would be admitted as it is.
    AGAIN = "again"
    #: The cordon ends.
    UNCORDON = "uncordon"
    #: The pod-level budget is larger, so that the containers that share it have something.
    BUDGET = "budget"
    #: Limits equal requests, so that containers may have CPUs of their own.
    GUARANTEED = "guaranteed"
    #: The pod is without an annotation that demands more, or has one more.
    ANNOTATION = "annotation"
    #: One request has another amount.
    REQUEST = "request"
    #: Other pods end.
    END = "end"
    #: One key of the configuration has another value.
    POLICY = "policy"


class Advice(Struct, frozen=True):
    """One change with which the pod would be admitted: it was tried."""

    #: `again`, `uncordon`, `budget`, `guaranteed`, `annotation`, `request`, `end` or `policy`
    #: (`AdviceKind`); a later release may have more.
    kind: str
    #: The change, in words.
    text: str
    #: Of a request: its container; null: the pod-level resources.
    container: str | None = None
    #: Of a request or a budget: the resource with another amount; of a budget the first of them.
    resource: str = ""
    #: The new amount of `resource`: millicores for `cpu`, bytes for memory, else a number.
    amount: int = 0
    #: The pods that end.
    uids: tuple[str, ...] = ()
    #: Of a policy: the key of the configuration; the annotation that is left out, or added.
    key: str = ""
    #: Of a policy: the new value; of an annotation that is added: its value; of an uncordon: what
    #: is cordoned.
    value: str = ""
    #: Of an annotation or a policy: what the pod does not get, or gets otherwise.
    loss: str = ""
