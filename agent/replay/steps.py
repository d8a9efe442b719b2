"""A sequence to replay, as values: the situation it starts in and what happens then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from agent.document.errors import Problem
    from agent.managers.rules import Rules
    from agent.pods.model import Pod


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask for a pod; `pod` is None when its manifest is invalid, `problems` say why."""

    name: str
    uid: str
    pod: Pod | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Remove:
    """End a pod."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container: the init containers before it are over."""

    name: str
    uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the agent again, on this machine under this policy.

    `rules` is None when the agent would not start, `problems` say why.
    """

    rules: Rules | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Ignored:
    """Something that has no part in a decision (of recorded sequences: stop, reconcile, ...)."""

    what: str


Step: TypeAlias = Admit | Remove | Start | Restart | Ignored


@dataclass(frozen=True, slots=True)
class Sequence:
    """A named sequence; every step has the number under which it stands in its file."""

    name: str
    begin: Restart
    steps: tuple[tuple[int, Step], ...]
