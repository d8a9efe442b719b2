"""Playing a sequence: every step decided by the agent's own pure functions, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.allocations.ledger import Ledger  # noqa: TC001  # msgspec reads the annotation
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.effective_policy import restored
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod
    from agent.yaml import Mistake


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
    """A named sequence; every step has the number under which it stands in its file.

    `ledger` are the allocations that exist before the first step, None for an empty host.
    """

    name: str
    begin: Restart
    steps: tuple[tuple[int, Step], ...]
    ledger: Ledger | None = None


class ReplayState(Struct, frozen=True):
    """The effective policy and the ledger."""

    rules: EffectivePolicy
    ledger: Ledger


class StepOutcome(Struct, frozen=True):
    """What came of one step, and the state after it.

    `number` is the step's in its file, None for the beginning. `decision` is that of an admission.
    `notes` say what else is to be known. `state` is None when the agent would not start; that is
    the last outcome then.
    """

    number: int | None
    step: Step
    state: ReplayState | None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()


def play(sequence: ReplaySequence) -> Iterator[StepOutcome]:
    """Yield the outcome of every step, and of the beginning only when the agent would not start."""
    rules = sequence.begin.rules
    if rules is None:
        yield _not_started(None, sequence.begin)
        return
    before = sequence.ledger
    ledger = rules.empty_ledger() if before is None else restored(rules, before)
    state = ReplayState(rules, ledger)
    for number, step in sequence.steps:
        outcome = _take(number, step, state)
        yield outcome
        if outcome.state is None:
            return
        state = outcome.state


def _take(number: int, step: Step, state: ReplayState) -> StepOutcome:
    match step:
        case Admit():
            decision = _decide(step, state)
            return StepOutcome(number, step, replace(state, ledger=decision.ledger), decision)
        case Remove(uid=uid):
            ledger = remove(state.rules, state.ledger, uid)
            return StepOutcome(
                number, step, replace(state, ledger=ledger), notes=_unknown(step, state)
            )
        case Start(uid=uid, container=container):
            ledger = start_container(state.rules, state.ledger, uid, container)
            return StepOutcome(
                number, step, replace(state, ledger=ledger), notes=_unknown(step, state)
            )
        case Restart():
            return _restart(number, step, state.ledger)
        case Ignored(what=what):
            return StepOutcome(number, step, state, notes=(f"{what} decides nothing",))


def _unknown(step: Remove | Start, state: ReplayState) -> tuple[str, ...]:
    return () if step.uid in state.ledger.allocations else (f"pod {step.name} holds nothing",)


def _decide(step: Admit, state: ReplayState) -> Decision:
    if step.pod is not None:
        return admit(state.rules, state.ledger, step.pod)
    rejection = Rejection(Reason.INVALID, _text(step.problems), remedy="mend the manifest")
    return Decision(step.uid, state.ledger, cause=rejection)


def _restart(number: int, step: Restart, ledger: Ledger) -> StepOutcome:
    """Keep every allocation: one that was given is a fact, whatever the rules are now."""
    if step.rules is None:
        return _not_started(number, step)
    online = step.rules.machine.cpus.all
    notes = tuple(
        f"pod {full_name(allocation)} holds CPUs"
        f" {allocation.exclusive_cpus - online},"
        " which are no longer online"
        for allocation in ledger.allocations.values()
        if allocation.exclusive_cpus - online
    )
    state = ReplayState(step.rules, restored(step.rules, ledger))
    return StepOutcome(number, step, state, notes=notes)


def _not_started(number: int | None, step: Restart) -> StepOutcome:
    return StepOutcome(number, step, None, notes=(_text(step.problems),))


def _text(problems: tuple[Mistake, ...]) -> str:
    return "; ".join(map(str, problems))
