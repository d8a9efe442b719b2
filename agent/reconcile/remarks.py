"""What is reported of one observation of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.desired import Role
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.report import CgroupReport, CgroupReports
from cgroupfs.apply import ENABLED, WriteResult
from cgroupfs.settings import MEMS
from cgroupfs.tree import is_within
from systemd.units import NotAskedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.reconcile.desired import DesiredCgroup
    from agent.reconcile.observe import Observation
    from agent.reconcile.target import Desired
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.plan import Plan
    from systemd.units import SystemdError


def withheld(plan: Plan) -> Iterator[str]:
    """Report memory that was not migrated because no repair asked for that."""
    for write in plan.withheld:
        if write.file != MEMS:
            continue  # a limit below what is in use: the cgroup differs, and says why
        yield (
            f"{write.file} of /{write.cgroup} is left as it is: writing {write.value} would "
            "migrate the memory of what runs there; a repair does"
        )


def not_offered(controllers: Collection[str]) -> Iterator[str]:
    """Report the controllers that the kernel does not offer here."""
    for name in sorted(controllers):
        yield (
            f"the kernel offers no {name} controller here, so agent.enforce {name} changes nothing"
        )


def not_recorded(item: DesiredCgroup, error: SystemdError) -> Difference:
    """Return the difference that the settings of a cgroup could not be recorded in systemd."""
    cgroup = item.setting.cgroup
    detail = (
        f"the settings of /{cgroup} are not recorded in systemd, which may revert them: {error}"
    )
    return Difference(cgroup, detail, Cause.REVERTED_BY_SYSTEMD, item.pod, item.container)


def none_recorded(cgroups: int, error: SystemdError) -> Difference:
    """Return one difference for all cgroups that a silent systemd has no record of."""
    why = error.silence if isinstance(error, NotAskedError) else error
    detail = (
        f"the settings of {cgroups} cgroups are not recorded in systemd, which may revert them; "
        f"the kernel enforces them, and a later comparison records them: {why}"
    )
    return Difference("", detail, Cause.REVERTED_BY_SYSTEMD)


def skipped(observed: Observation, outcomes: Iterable[WriteOutcome]) -> Iterator[Difference]:
    """Report what was not written because another cgroup keeps CPUs that it should leave."""
    left = [outcome for outcome in outcomes if outcome.result is WriteResult.SKIPPED]
    owners = {item.setting.cgroup: item for item in (observed.desired if left else ())}
    for outcome in left:
        write, item = outcome.write, owners[outcome.write.cgroup]
        detail = outcome.detail
        yield Difference(write.cgroup, detail, Cause.UNKNOWN, item.pod, item.container, write.file)


def not_fitting(observed: Observation, plan: Plan) -> Iterator[Difference]:
    """Report what was not written as desired because a cgroup above is to have less."""
    owners = {item.setting.cgroup: item for item in (observed.desired if plan.unfit else ())}
    for each in plan.unfit:
        item = owners[each.cgroup]
        detail = (
            f"{each.file} of /{each.cgroup} cannot be {each.desired}: /{each.above} above it is to "
            f"have {each.given}; 'numawarden check --cgroups' shows both"
        )
        yield Difference(
            each.cgroup, detail, Cause.PARENT_TOO_NARROW, item.pod, item.container, each.file
        )


def concerns(difference: Difference, cgroups: Collection[str]) -> bool:
    """Return whether a difference is in these cgroups; a lost controller concerns all below."""
    if difference.file != ENABLED:
        return difference.cgroup in cgroups
    inside = f"{difference.cgroup}/" if difference.cgroup else ""
    return any(cgroup.startswith(inside) for cgroup in cgroups)


def beyond_repair(
    left: Iterable[Difference], outcomes: Iterable[WriteOutcome], resting: Collection[str]
) -> Iterator[Difference]:
    """Yield what the kernel does not enforce whatever is written (a CPU that is offline).

    Left out are cgroups that rest, and files that the kernel accepted and that now show another
    value, which another process wrote.
    """
    taken = {(each.write.cgroup, each.write.file) for each in outcomes if each.shown is not None}
    for difference in left:
        if (difference.cgroup, difference.file) not in taken and not is_within(
            difference.cgroup, resting
        ):
            yield difference


def reports(observed: Observation, differences: Iterable[Difference]) -> CgroupReports:
    """Return each cgroup with its differences; those that are gone are left out.

    The own cgroup of a pod of which only that was observed is left out as well, unless it differs.
    """
    boundaries = frozenset[str]() if observed.scope is None else observed.scope.boundaries
    mine: dict[str, tuple[Difference, ...]] = {}
    for difference in differences:
        mine[difference.cgroup] = (*mine.get(difference.cgroup, ()), difference)
    states = observed.states
    return CgroupReports(
        [
            CgroupReport(item, states.get(cgroup), mine.get(cgroup, ()))
            for item in observed.desired
            if (cgroup := item.setting.cgroup) in mine
            or (cgroup in states and item.pod not in boundaries)
        ]
    )


def beside(observed: Observation, differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield differences outside the desired cgroups: controllers of ancestors, unusable uids."""
    for uid, why in observed.identified.unnamed.items():
        yield Difference("", f"the pod cannot have a cgroup: {why}", Cause.UNKNOWN, uid)
    differences = tuple(differences)
    own = {item.setting.cgroup for item in (observed.desired if differences else ())}
    yield from (difference for difference in differences if difference.cgroup not in own)


def not_there(observed: Observation, target: Desired) -> Iterator[Difference]:
    """Yield what observed pods lack of their allocation, which no cgroup of theirs shows."""
    pods = observed.pods()
    for uid, why in target.lacking.items():
        if pods is None or uid in pods:
            yield Difference("", why, Cause.CPU_WITHHELD, uid)


def notes(observed: Observation, *, orphans: bool = True) -> Iterator[str]:
    """Report unidentified container cgroups and the orphaned cgroups of removed pods.

    Beside a kubelet (`orphans` False) a pod without an allocation is nothing unusual: its source
    reports why.
    """
    for item in observed.compared:  # no such cgroup is settled
        if item.role is Role.UNIDENTIFIED and item.setting.cgroup in observed.states:
            yield (
                f"/{item.setting.cgroup} of pod {item.pod} does not match any of its containers; "
                f"it runs on {item.setting.cpus or 'what its pod has'} until it is "
                "bound with 'numawarden bind'"
            )
        if (
            item.role is Role.EPHEMERAL
            and item.setting.cgroup in observed.states
            and not item.setting.inherits
        ):
            yield (
                f"/{item.setting.cgroup} of pod {item.pod} is an ephemeral container; it runs in "
                "the node's shared pool, and the cgroup of its pod has that too until it ends"
            )
    hosts = observed.hosts()
    for item in observed.desired if hosts else ():
        inside = item.setting.cgroup.partition("/")[0]
        if item.setting.exclusive and inside in hosts:
            yield (
                f"/{item.setting.cgroup} has exclusive CPUs inside of /{inside}, so that the "
                f"host's other services may use {item.setting.cpus}; give the unit Slice= of a "
                "slice of its own"
            )
    for orphan in observed.identified.orphaned:
        state = observed.states.get(orphan.cgroup)
        if orphan.bound and (state is None or not state.populated):
            continue  # the next comparison clears it
        if not (orphans or orphan.bound):
            continue
        yield (
            f"/{orphan.cgroup} is no longer bound to a container; what runs there "
            "is confined to the node's shared pool until it ends"
            if orphan.bound
            else f"/{orphan.cgroup} belongs to no admitted pod; what runs there is confined to "
            "the node's shared pool, and it is removed when it is empty"
        )
