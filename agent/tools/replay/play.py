"""Playing a sequence: every step decided by the agent's own pure functions, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import admit, remove, start_container
from agent.managers.decision import Decision, Reason, Refusal
from agent.managers.readmission import restored
from agent.tools.replay.steps import Admit, Ignored, Remove, Restart, Sequence, Start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import Rules
    from agent.parsing.errors import Problem
    from agent.tools.replay.steps import Step


class State(Struct, frozen=True):
    """The rules in force and who holds what."""

    rules: Rules
    ledger: Ledger


class Outcome(Struct, frozen=True):
    """What came of one step, and the state after it.

    `number` is the step's in its file, None for the beginning. `decision` is that of an admission.
    `notes` say what else is to be known. `state` is None when the agent would not start; that is
    the last outcome then.
    """

    number: int | None
    step: Step
    state: State | None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()


def play(sequence: Sequence) -> Iterator[Outcome]:
    """Yield the outcome of every step, and of the beginning only when the agent would not start."""
    rules = sequence.begin.rules
    if rules is None:
        yield _not_started(None, sequence.begin)
        return
    state = State(rules, rules.empty_ledger())
    for number, step in sequence.steps:
        outcome = _take(number, step, state)
        yield outcome
        if outcome.state is None:
            return
        state = outcome.state


def _take(number: int, step: Step, state: State) -> Outcome:
    match step:
        case Admit():
            decision = _decide(step, state)
            return Outcome(number, step, replace(state, ledger=decision.ledger), decision)
        case Remove(uid=uid):
            ledger = remove(state.rules, state.ledger, uid)
            return Outcome(number, step, replace(state, ledger=ledger), notes=_unknown(step, state))
        case Start(uid=uid, container=container):
            ledger = start_container(state.rules, state.ledger, uid, container)
            return Outcome(number, step, replace(state, ledger=ledger), notes=_unknown(step, state))
        case Restart():
            return _restart(number, step, state.ledger)
        case Ignored(what=what):
            return Outcome(number, step, state, notes=(f"{what} decides nothing",))


def _unknown(step: Remove | Start, state: State) -> tuple[str, ...]:
    return () if step.uid in state.ledger.grants else (f"pod {step.name} holds nothing",)


def _decide(step: Admit, state: State) -> Decision:
    if step.pod is not None:
        return admit(state.rules, state.ledger, step.pod)
    refusal = Refusal(Reason.INVALID, _text(step.problems), remedy="mend the manifest")
    return Decision(step.uid, state.ledger, cause=refusal)


def _restart(number: int, step: Restart, ledger: Ledger) -> Outcome:
    """Keep every grant: one that was given is a fact, whatever the rules are now."""
    if step.rules is None:
        return _not_started(number, step)
    online = step.rules.machine.cpus.all
    notes = tuple(
        f"pod {grant.namespace}/{grant.name} holds CPUs {grant.exclusive_cpus - online},"
        " which are not online any longer"
        for grant in ledger.grants.values()
        if grant.exclusive_cpus - online
    )
    state = State(step.rules, restored(step.rules, ledger))
    return Outcome(number, step, state, notes=notes)


def _not_started(number: int | None, step: Restart) -> Outcome:
    return Outcome(number, step, None, notes=(_text(step.problems),))


def _text(problems: tuple[Problem, ...]) -> str:
    return "; ".join(map(str, problems))
