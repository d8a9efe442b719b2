"""Whatever order requests, plugins, the disk and one disturbance come in, nothing is given twice.

Here are all worlds of one request. Those of two are explored in CI, those of three when a night is
free: `python -m tests.exploration`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from agent.devices.providers import Providers
from agent.server import effects, maintenance
from agent.server.admissions import Admissions
from agent.server.controller import Controller
from agent.server.decider import Admission, Decider
from agent.server.effects import Effects
from agent.server.queue import Job, SerialQueue, outcome_of
from agent.server.state import AgentState
from agent.server.steps import Steps
from tests.exploration.search import Scenario, explore, scenarios
from tests.exploration.stage import DISTURBANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.api.documents.maintenance import CordonRequest, CordonsDocument
    from agent.managers.ledger import Ledger
    from agent.server.configured import ConfiguredHost
    from agent.state.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log nothing: thousands of agents live and die here."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_one_request_has_one_true_answer_in_every_order(disturbance: str) -> None:
    states = 0
    for scenario in scenarios(1):
        if scenario.disturbance == disturbance:
            tally = explore(scenario)
            assert not tally.broken, scenario
            states += tally.states
    assert states > 50


def test_a_rejected_pod_beside_one_that_waits_for_its_plugin_in_every_order() -> None:
    """Two pods were given the same CPUs when a group had one that fits, one that does not, one."""
    tally = explore(Scenario(("comes", "small", "none", "small")))
    assert not tally.broken
    assert tally.states > 80


def test_a_pod_that_is_removed_and_asked_for_again_has_its_devices_prepared_anew() -> None:
    """What is prepared for the pod that was removed says nothing about the next one."""
    tally = explore(Scenario(("comes", "again"), "remove"))
    assert not tally.broken
    assert tally.states > 400


def test_a_story_is_the_same_each_time() -> None:
    scenario = Scenario(("small", "listed"), "kill")
    assert explore(scenario) == explore(scenario)


# What the search is worth: each of these defects of the agent is found.


def decided_on_one_ledger(patch: pytest.MonkeyPatch) -> None:
    """All pods of a group are decided on the ledger of the state."""
    propose = Decider.propose

    def mutant(self: Decider, request: Admission, _: Ledger) -> object:
        return propose(self, request, self._state.ledger)

    patch.setattr(Decider, "propose", mutant)


def decided_on_one_ledger_and_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    decided_on_one_ledger(patch)
    patch.setattr(effects, "_check_unique", lambda *_: None)


def never_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admissions, "_is_alone", lambda *_: False)


def names_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AgentState, "namesakes", lambda *_: ())


def failed_save_used(patch: pytest.MonkeyPatch) -> None:
    commit = Steps.commit

    async def mutant(self: Steps, durable: Checkpoint) -> None:
        self.state.durable = durable
        await commit(self, durable)

    patch.setattr(Steps, "commit", mutant)


def several_turns_at_once(patch: pytest.MonkeyPatch) -> None:
    async def serve(self: SerialQueue) -> None:
        tasks = []
        while (job := await self._next()) is not None:
            tasks.append(asyncio.create_task(turn(self, job)))

    async def turn(queue: SerialQueue, job: Job[Any]) -> None:
        job.settle(*await outcome_of(queue._watched(job), job.context))

    patch.setattr(SerialQueue, "_serve", serve)


def answered_before_it_is_enforced(patch: pytest.MonkeyPatch) -> None:
    async def mutant(*_: object, **__: object) -> None:
        pass

    patch.setattr(Steps, "enforce_pods", mutant)


def host_read_beside_the_line(patch: pytest.MonkeyPatch) -> None:
    async def mutant(self: Controller, discover: Callable[[], ConfiguredHost]) -> bool:
        return await self._take_over(discover)

    patch.setattr(Controller, "take_over", mutant)


def cordoned_beside_the_line(patch: pytest.MonkeyPatch) -> None:
    async def mutant(self: Controller, request: CordonRequest) -> CordonsDocument:
        return await maintenance.cordon(self.steps, request)

    patch.setattr(Controller, "cordon", mutant)


def waiting_ones_forgotten_at_a_stop(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SerialQueue) -> None:
        self._stopping = True
        self._woken.set()

    patch.setattr(SerialQueue, "stop", mutant)


def rejected_ones_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def mutant(*_: object) -> None:
        await asyncio.Event().wait()

    patch.setattr(Effects, "_reject", mutant)


def preparation_not_saved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Providers, "prepares", lambda *_: False)


MUTANTS = (
    (decided_on_one_ledger, ("small", "small", "small"), "", "_DoubleAllocationError"),
    (decided_on_one_ledger_and_not_looked_at, ("small", "small"), "", "CPUs 1,9 twice"),
    (never_alone, ("small", "namesake"), "", "two pods are called pod0"),
    (names_not_looked_at, ("small", "namesake"), "", "two pods are called pod0"),
    (failed_save_used, ("small",), "disk", "is admitted, and was answered CheckpointFailedError"),
    (several_turns_at_once, ("comes", "small"), "", "request 1 got KeyError"),
    (answered_before_it_is_enforced, ("small",), "", "the kernel has  for"),
    (host_read_beside_the_line, ("comes",), "offline", "was given what was not there"),
    (cordoned_beside_the_line, ("comes",), "cordon", "the cordon does not list"),
    (waiting_ones_forgotten_at_a_stop, ("comes", "small"), "stop", "request 1 has no answer"),
    (rejected_ones_forgotten, ("none",), "", "request 0 has no answer"),
    (preparation_not_saved, ("comes",), "kill", "are said to be prepared"),
)


@pytest.mark.parametrize(
    ("mutate", "kinds", "disturbance", "why"),
    MUTANTS,
    ids=[mutate.__name__ for mutate, *_ in MUTANTS],
)
def test_a_defect_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None],
    kinds: tuple[str, ...],
    disturbance: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    assert why in explore(Scenario(kinds, disturbance)).broken
