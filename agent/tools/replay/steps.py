"""A sequence to replay, as values: the host and policy at its start, and the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from agent.managers.effective_policy import EffectivePolicy
    from agent.parsing.errors import Mistake
    from agent.pods.model import Pod


class Admit(Struct, frozen=True):
    """Ask for a pod; `pod` is None when its manifest is invalid, `problems` say why."""

    name: str
    uid: str
    pod: Pod | None
    problems: tuple[Mistake, ...] = ()


class Remove(Struct, frozen=True):
    """End a pod."""

    name: str
    uid: str


class Start(Struct, frozen=True):
    """Start a container: the init containers before it are over."""

    name: str
    uid: str
    container: str


class Restart(Struct, frozen=True):
    """Start the agent again, on this machine under this policy.

    `rules` is None when the agent would not start, `problems` say why.
    """

    rules: EffectivePolicy | None
    problems: tuple[Mistake, ...] = ()


class Ignored(Struct, frozen=True):
    """Something that has no part in a decision (of recorded sequences: stop, reconcile, ...)."""

    what: str


Step: TypeAlias = Admit | Remove | Start | Restart | Ignored


class ReplaySequence(Struct, frozen=True):
    """A named sequence; every step has the number under which it stands in its file."""

    name: str
    begin: Restart
    steps: tuple[tuple[int, Step], ...]
