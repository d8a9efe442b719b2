"""What an admission costs with more and more pods: `python -m tests.load.growth`.

Processor time of a decision, of its enforcement on the emulated kernel, of a save, and of the
enforcement of a removal; the median, without socket and queue. A shared pod leaves the node's
shared pool as it is; for an exclusive one every container in the pool is narrowed and widened.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from agent.cluster.plugs import PLUGS
from agent.managers import admission
from agent.pods.manifest import load_pod
from agent.server.state import decide
from agent.server.wiring import Fakes, Wiring
from cgroupfs.names import Driver, Layout
from tests.agent.server.support import RecordingManager
from tests.load.churn import TIERS, busy_world, manifest_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.pods.model import Pod
    from agent.reconcile.report import EnforcementReport
    from agent.server.controller import Controller
    from tests.agent.server.support import World

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
#: Numbers above those of the admitted pods.
_FIRST = 10_000_000


@dataclass
class FullHost:
    """A host that holds pods, and the times of what was done to it, in seconds by name."""

    world: World
    controller: Controller
    containers: int
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def fill(self, pods: int) -> None:
        """Admit shared pods, enforce all at once, and start their containers."""
        for number in range(pods):
            self._take_over(self._decide(self._pod(number, "shared")))
        self._check(self.controller.steps.kernel.reconcile(self.controller.state.target()))
        for number in range(pods):
            for container in range(self.containers):
                pod = Layout(Driver.CGROUPFS).pod(uid_of(number), TIERS["shared"])
                cgroup = f"{pod}/c{container}"
                self.world.kernel.mkdir(cgroup)
                self.world.kernel.spawn(cgroup, number * 100 + container)
        self._check(self.controller.steps.kernel.reconcile(self.controller.state.target()))

    def admit_and_remove(self, number: int, kind: str) -> None:
        """Measure an admission and a removal."""
        state, kernel = self.controller.state, self.controller.steps.kernel
        allocation = self._take_over(self._timed("decision", self._decide, self._pod(number, kind)))
        self._timed("save", self.controller.steps.store.save, state.to_save(state.durable))
        self._check(
            self._timed("enforced", lambda: kernel.admitted(state.target(), allocation.uid))
        )
        ledger = admission.remove(state.configured.rules, state.ledger, allocation.uid)
        state.durable = state.durable.without_pod(ledger, allocation.uid)
        self._check(self._timed("removal", lambda: kernel.removed(state.target(), allocation)))

    def _pod(self, number: int, kind: str) -> Pod:
        return load_pod(manifest_of(uid_of(number), kind, self._names), "growth")

    @property
    def _names(self) -> list[str]:
        return [f"c{number}" for number in range(self.containers)]

    def _decide(self, pod: Pod) -> Decision:
        return decide(self.controller.state.configured, self.controller.state.ledger, pod)

    def _take_over(self, decision: Decision) -> PodAllocation:
        if decision.allocation is None:
            raise ValueError(f"rejected: {decision.rejection}")
        state = self.controller.state
        state.durable = state.durable.with_pod(decision.ledger, decision.allocation.uid)
        return decision.allocation

    def _timed(
        self,
        name: str,
        call: Callable[_Params, _Result],
        *args: _Params.args,
        **kwargs: _Params.kwargs,
    ) -> _Result:
        started = process_time()
        result = call(*args, **kwargs)
        self.times[name].append(process_time() - started)
        return result

    @staticmethod
    def _check(outcome: EnforcementReport) -> None:
        if outcome.remaining:
            raise ValueError(f"not enforced: {outcome}")


def main() -> None:
    """Measure and print a line for each number of pods."""
    arguments = _arguments()
    for kind in ("shared", "exclusive"):
        for pods in arguments.pods:
            with TemporaryDirectory() as directory:
                times = _measure(
                    Path(directory), kind, pods, arguments.containers, arguments.rounds
                )
            shown = ", ".join(f"{name} {median(each) * 1000:.2f}" for name, each in times.items())
            print(f"{kind} pod, {pods} of {arguments.containers} containers: {shown} ms")


def _measure(
    directory: Path, kind: str, pods: int, containers: int, rounds: int
) -> dict[str, list[float]]:
    world = busy_world(directory)
    fakes = Fakes(tree=world.kernel, live=False, tasks=tuple)
    assembly = Wiring(world.config, RecordingManager(), world.clock, PLUGS, fakes)
    with assembly:
        host = FullHost(world, assembly.controller, containers)
        host.fill(pods)
        for number in range(_FIRST, _FIRST + rounds):
            host.admit_and_remove(number, kind)
    return host.times


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.load.growth", description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[10, 500, 2500])
    parser.add_argument("--containers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
