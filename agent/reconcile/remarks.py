"""What is worth reporting of a look at the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.desired.settings import Role
from agent.reconcile.report import CgroupReport, Difference
from cgroupfs.apply import WriteResult
from cgroupfs.controllers import ENABLED
from cgroupfs.state import MEMS
from cgroupfs.tree import is_within
from cgroupfs.verify import Cause
from systemd.errors import NotAskedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.snapshot import Observation
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.plan import Plan
    from systemd.errors import SystemdError


def withheld(plan: Plan) -> Iterator[str]:
    """Tell of memory that was not moved unasked."""
    for write in plan.withheld:
        if write.file != MEMS:
            continue  # a limit below what is in use: the cgroup differs, and says why
        yield (
            f"{write.file} of /{write.cgroup} is left as it is: writing {write.value} would "
            "migrate the memory of what runs there; a repair does"
        )


def not_offered(controllers: Collection[str]) -> Iterator[str]:
    """Tell of controllers that the kernel does not have here."""
    for name in sorted(controllers):
        yield (
            f"the kernel offers no {name} controller here, so agent.enforce {name} changes nothing"
        )


def not_told(item: DesiredCgroup, error: SystemdError) -> Difference:
    """Return the problem that systemd does not hold the settings of a cgroup."""
    cgroup = item.setting.cgroup
    detail = f"systemd was not told of /{cgroup} and may undo its settings: {error}"
    return Difference(cgroup, detail, Cause.REVERTED_BY_SYSTEMD, item.pod, item.container)


def none_told(cgroups: int, error: SystemdError) -> Difference:
    """Return the one problem of all cgroups of whose settings a silent systemd was not told."""
    why = error.silence if isinstance(error, NotAskedError) else error
    detail = (
        f"systemd was not told of the settings of {cgroups} cgroups and may undo them; they are "
        f"in force, and it is told at a later comparison: {why}"
    )
    return Difference("", detail, Cause.REVERTED_BY_SYSTEMD)


def skipped(scene: Observation, outcomes: Iterable[WriteOutcome]) -> Iterator[Difference]:
    """Explain what was not written because somebody could not be narrowed first."""
    owners = {item.setting.cgroup: item for item in scene.desired}
    for outcome in outcomes:
        if outcome.result is WriteResult.SKIPPED:
            write, item = outcome.write, owners[outcome.write.cgroup]
            cause = outcome.cause or Cause.UNKNOWN
            yield Difference(
                write.cgroup, outcome.detail, cause, item.pod, item.container, write.file
            )


def concerns(problem: Difference, cgroups: Collection[str]) -> bool:
    """Return whether a problem is of these cgroups; a lost controller is of those inside."""
    if problem.file != ENABLED:
        return problem.cgroup in cgroups
    inside = f"{problem.cgroup}/" if problem.cgroup else ""
    return any(cgroup.startswith(inside) for cgroup in cgroups)


def beyond_repair(
    left: Iterable[Difference], outcomes: Iterable[WriteOutcome], resting: Collection[str]
) -> Iterator[Difference]:
    """Yield what the kernel does not enforce whatever is written (a CPU that is offline).

    It is not what waits, nor what shows another value than the kernel took: that somebody undid.
    """
    taken = {(each.write.cgroup, each.write.file) for each in outcomes if each.shown is not None}
    for problem in left:
        if (problem.cgroup, problem.file) not in taken and not is_within(problem.cgroup, resting):
            yield problem


def reports(scene: Observation, problems: Iterable[Difference]) -> tuple[CgroupReport, ...]:
    """Return each cgroup with what is wrong in it; one that has ended is left out."""
    mine: dict[str, list[Difference]] = {}
    for problem in problems:
        mine.setdefault(problem.cgroup, []).append(problem)
    return tuple(
        CgroupReport(item, scene.states.get(cgroup), tuple(mine.get(cgroup, ())))
        for item in scene.desired
        if (cgroup := item.setting.cgroup) in scene.states or cgroup in mine
    )


def beside(scene: Observation, problems: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the problems of no cgroup of ours: an ancestor's controllers, a pod without a name."""
    for uid, why in scene.landscape.unnamed.items():
        yield Difference("", f"the pod cannot have a cgroup: {why}", Cause.UNKNOWN, uid)
    own = {item.setting.cgroup for item in scene.desired}
    yield from (problem for problem in problems if problem.cgroup not in own)


def notes(scene: Observation) -> Iterator[str]:
    """Tell of the cgroups that nobody can name, and of what is left of removed pods."""
    for item in scene.desired:
        if item.role is Role.UNIDENTIFIED and item.setting.cgroup in scene.states:
            yield (
                f"/{item.setting.cgroup} in pod {item.pod} cannot be told to be one of its "
                f"containers; it runs on {item.setting.cpus or 'what its pod has'} until it is "
                "bound with 'numawarden bind'"
            )
    for leftover in scene.landscape.leftovers:
        state = scene.states.get(leftover.cgroup)
        if leftover.bound and (state is None or not state.populated):
            continue  # the next comparison clears it
        yield (
            f"/{leftover.cgroup} was bound to a container and is not any more; what runs there "
            "is confined to the node's shared pool until it ends"
            if leftover.bound
            else f"/{leftover.cgroup} belongs to no admitted pod; what runs there is confined to "
            "the node's shared pool, and it is removed when it is empty"
        )
