"""Replays: what is accepted can be played to its end, and no step breaks what must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.decision import Reason, out_of
from agent.tools.replay.play import Admit, Restart, StepOutcome, play
from agent.tools.replay.reading import ReplayError, read_sequence
from agent.yaml import UnreadableError, read_document
from tests.conformance.invariants import broken_invariants
from tests.fuzz.damage import damaged_document, written
from tests.fuzz.target import Target, demand, plain_check

if TYPE_CHECKING:
    from random import Random

    from agent.managers.decision import Rejection

_FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "replay"
BASES: Final = tuple(
    json.dumps(yaml.safe_load(file.read_text())) for file in sorted(_FOLDER.glob("*.yaml"))
)
#: A step may be taken a thousand times; so many show all that there is to see.
_STEPS: Final = 40


def make_replay(random: Random) -> bytes:
    """Draw a damaged replay."""
    return written(random, damaged_document(random, json.loads(random.choice(BASES))))


def check_replay(data: bytes) -> bool:
    """Try one replay."""
    try:
        sequence = read_sequence(read_document(data), "fuzz", _FOLDER)
    except UnreadableError as error:
        demand(error.problem.message, "unreadable without a reason")
        return False
    except ReplayError as error:
        demand(error.problems, "rejected without a reason")
        return False
    lasting = True
    for number, outcome in zip(range(_STEPS), play(sequence), strict=False):
        # After a restart with other rules allocations are facts, whatever these rules would give.
        lasting = lasting and not isinstance(outcome.step, Restart)
        _check_outcome(outcome, lasting=lasting)
        demand(outcome.number <= number + 1, "a step was left out")
    return True


def _is_reason(rejection: Rejection) -> bool:
    short = rejection.resource is not None and rejection.reason == out_of(rejection.resource)
    return rejection.reason in set(Reason) or short


def _check_outcome(outcome: StepOutcome, *, lasting: bool) -> None:
    state, decision = outcome.state, outcome.decision
    demand((decision is not None) == isinstance(outcome.step, Admit), "a decision on nothing")
    if decision is not None:
        rejection = decision.rejection
        demand(
            (decision.allocation is None) == (rejection is not None),
            "neither admitted nor rejected",
        )
        demand(rejection is None or (_is_reason(rejection) and rejection.message), "no reason")
    if lasting:
        broken = broken_invariants(state.rules, state.ledger)
        demand(not broken, f"{broken}")
    allocated = [allocation.exclusive_cpus for allocation in state.ledger.allocations.values()]
    demand(
        sum(map(len, allocated)) == len(exclusive_cpus(state.ledger)), "a CPU is allocated twice"
    )


REPLAYS: Final = Target("replay", make_replay, plain_check(check_replay))
