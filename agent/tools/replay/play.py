"""Playing a sequence: every step decided by the agent's own pure functions, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.allocations.ledger import Ledger  # noqa: TC001  # msgspec reads the annotation
from agent.managers.effective_policy import restored
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.decision import Decision
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod


class Admit(Struct, frozen=True):
    """Ask for a pod."""

    name: str
    uid: str
    pod: Pod


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
    """Start the agent again, on this machine under this policy."""

    rules: EffectivePolicy


Step: TypeAlias = Admit | Remove | Start | Restart


class ReplaySequence(Struct, frozen=True):
    """A named sequence; every step has the number under which it stands in its file.

    `ledger` are the allocations that exist before the first step, None for an empty host.
    """

    name: str
    rules: EffectivePolicy
    steps: tuple[tuple[int, Step], ...]
    ledger: Ledger | None = None


class ReplayState(Struct, frozen=True):
    """The effective policy and the ledger."""

    rules: EffectivePolicy
    ledger: Ledger


class StepOutcome(Struct, frozen=True):
    """The result of one step, and the state after it.

    `number` is the step's in its file. `decision` is that of an admission. `notes` say what else is
    to be known.
    """

    number: int
    step: Step
    state: ReplayState
    decision: Decision | None = None
    notes: tuple[str, ...] = ()


def play(sequence: ReplaySequence) -> Iterator[StepOutcome]:
    """Yield the outcome of every step."""
    rules, before = sequence.rules, sequence.ledger
    ledger = rules.empty_ledger() if before is None else restored(rules, before)
    state = ReplayState(rules, ledger)
    for number, step in sequence.steps:
        outcome = _take(number, step, state)
        yield outcome
        state = outcome.state


def _take(number: int, step: Step, state: ReplayState) -> StepOutcome:
    rules, ledger = state.rules, state.ledger
    if isinstance(step, Admit):
        decision = admit(rules, ledger, step.pod)
        return StepOutcome(number, step, replace(state, ledger=decision.ledger), decision)
    if isinstance(step, Restart):
        # Every allocation stays: one that was given is a fact, whatever the rules are now.
        after = ReplayState(step.rules, restored(step.rules, ledger))
        return StepOutcome(number, step, after, notes=tuple(_offline(step.rules, ledger)))
    if isinstance(step, Remove):
        left = remove(rules, ledger, step.uid)
    else:
        left = start_container(rules, ledger, step.uid, step.container)
    notes = () if step.uid in ledger.allocations else (f"pod {step.name} holds nothing",)
    return StepOutcome(number, step, replace(state, ledger=left), notes=notes)


def _offline(rules: EffectivePolicy, ledger: Ledger) -> Iterator[str]:
    """Yield the pods that hold CPUs which the machine no longer has."""
    for allocation in ledger.allocations.values():
        if gone := allocation.exclusive_cpus - rules.machine.cpus.all:
            pod = full_name(allocation)
            yield f"pod {pod} holds CPUs {gone}, which are no longer online"
