"""The CPUs of a running pod that is resized: which of them stay, and which come to them (KEP-5554).

In go what the containers have, what they ask for now, and free CPUs; out come sets of CPUs. Always
true: who asks for as many CPUs or more keeps all; who asks for fewer keeps what was given at the
admission, unless CPUs are named that stay; what comes is as near as possible to what stays; whole
cores stay whole where the policy asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.allocation import BUDGET, Isolation
from agent.managers.amounts import cpus_text
from agent.managers.cpu.pod_level import CpuPart, divided
from agent.managers.cpu.take import NotEnoughCpusError, take_by_topology
from agent.managers.decision import Reason, Rejected, Rejection, reject_if
from agent.pods.model import CPU
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.demand import PodDemand
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.resource_manager import Held


def kept_cpus(
    topology: CpuTopology, options: CpuPolicyOptions, demand: PodDemand, held: Held
) -> dict[str, Mask]:
    """Return the CPUs that stay, by container with CPUs of its own, and those of the budget.

    Raises `Rejected` for fewer CPUs than must stay, for CPUs to stay that the pod has not, and for
    parts of cores where `full-pcpus-only` asks for whole ones.
    """
    pod = held.allocation
    if missing := held.keep - (pod.exclusive_cpus - pod.idle):
        raise Rejected(_infeasible(f"the pod does not have CPUs {missing}, which are to stay"))
    kept: dict[str, Mask] = {}
    lasting = EMPTY
    for container in demand.containers:
        has = pod.container(container.name)
        if has is None or has.cpus is None or has.isolation is not Isolation.CONTAINER:
            continue
        if container.is_standard_init:
            kept[has.name] = has.cpus
            continue
        given = pod.originals.get(has.name, has.cpus)
        subject = f"container {has.name}"
        kept[has.name] = _staying(
            topology, options, has.cpus, given, held.keep & has.cpus, container.cpus, subject
        )
        if pod.cpus is None:  # of a budget, the parts need not be whole cores
            reject_if(_torn(topology, options, has.cpus, kept[has.name], subject))
        lasting |= kept[has.name]
    if pod.cpus is not None:
        given = pod.originals.get(BUDGET, pod.cpus)
        named = held.keep | lasting if held.keep else EMPTY
        kept[BUDGET] = _staying(
            topology, options, pod.cpus, given | lasting, named, demand.cpus, "the pod"
        )
        reject_if(_torn(topology, options, pod.cpus, kept[BUDGET], "the pod"))
    return kept


def _staying(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    has: Mask,
    given: Mask,
    keep: Mask,
    count: int,
    subject: str,
) -> Mask:
    """Return which of the CPUs that a container or pod has stay when it asks for `count`.

    1. All of them, if it asks for as many or more.
    2. Those that were given at the admission and those to keep; or the latter alone, if they are as
       many as it asks for.
    3. The nearest to these; where too few of them are online, or in whole cores, any, online first.
    """
    if count >= len(has):
        return has
    stays = keep if len(keep) >= count else given & has | keep
    if len(stays) > count:
        if keep:
            found = f"CPUs {stays} are to stay, which are more"
            remedy = f"name {cpus_text(count)} that stay"
        else:
            found = f"it was admitted with CPUs {stays}, which stay"
            remedy = f"name which {cpus_text(count)} of CPUs {has} stay (--keep)"
        message = f"{subject} asks for {cpus_text(count)}, but {found}"
        raise Rejected(_infeasible(message, remedy))
    more, rest = count - len(stays), has - stays
    try:
        return stays | nearest(topology, options, stays, rest, more)
    except NotEnoughCpusError:
        online_first = [*(rest & topology.all), *(rest - topology.all)]
        return stays | Mask.from_ids(online_first[:more])


def _torn(
    topology: CpuTopology, options: CpuPolicyOptions, has: Mask, stays: Mask, subject: str
) -> Rejection | None:
    """Return why not all that stays are whole cores, though it has such and they are asked for.

    None where cores differ in size: there they are preferred, not guaranteed.
    """
    if stays == has or not options.full_pcpus_only or not topology.cores_alike:
        return None
    if topology.cores_of(has) - has:  # which an older policy gave
        return None
    torn = topology.cores_of(stays) - stays
    if not torn:
        return None
    message = f"{subject} would keep CPUs {stays}, but not their siblings {torn}"
    remedy = "name CPUs that stay, of whole cores (--keep)"
    if len(stays) % topology.cpus_per_core:
        remedy = f"ask for a multiple of the {topology.cpus_per_core} CPUs of a core"
    return Rejection(Reason.SMT_ALIGNMENT, message, remedy, resource=CPU, asked=len(stays))


def nearest(
    topology: CpuTopology, options: CpuPolicyOptions, own: Mask, free: Mask, count: int
) -> Mask:
    """Return `count` of the free CPUs, those first that are nearest to a container's own.

    On its cores, in its caches where these are asked for, on its NUMA nodes, anywhere; at each step
    chosen as for a new container. Raises `NotEnoughCpusError`.
    """
    if count <= 0:
        return EMPTY
    if options.full_pcpus_only and topology.cores_alike:
        free &= topology.whole_cores_in(free | own)
    places = [topology.cores_of(own)]
    if options.prefer_align_cpus_by_uncorecache:
        places.append(Mask(sum(each.cpus for each in topology.uncores if each.cpus & own.bits)))
    places += [topology.cpus_in_nodes(topology.nodes_of(own)), topology.all]
    chosen = EMPTY
    for place in places:
        room = free & place - chosen
        if more := min(count - len(chosen), len(room)):
            chosen |= take_by_topology(topology, options, room, more)
    if len(chosen) < count:
        raise NotEnoughCpusError(count, len(chosen))
    return chosen


def evenly(
    topology: CpuTopology, options: CpuPolicyOptions, own: Mask, free: Mask, count: int
) -> Mask:
    """Return `count` free CPUs with which each node of `own` and `free` has as many of all.

    Empty where that is not possible, or would tear cores that are to be whole
    (`distribute-cpus-across-numa`).
    """
    nodes = topology.nodes_of(own | free)
    share, rest = divmod(len(own) + count, len(nodes) or 1)
    if rest or len(nodes) <= 1:
        return EMPTY
    chosen = EMPTY
    for node in nodes:
        here = topology.cpus_in_nodes(Mask.of(node))
        more = share - len(own & here)
        torn = options.full_pcpus_only and more % topology.cpus_per_core
        if more < 0 or more > len(free & here) or torn:
            return EMPTY
        chosen |= nearest(topology, options, own & here, free & here, more)
    return chosen


def divided_again(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    budget: Mask,
    demand: PodDemand,
    kept: Mapping[str, Mask],
) -> dict[str, CpuPart]:
    """Divide a budget whose containers keep what they have of it; as `pod_level.divide_cpus`.

    Raises `NotEnoughCpusError` when the exclusive requests exceed the budget.
    """
    lasting = {c.name: kept.get(c.name, EMPTY) for c in demand.containers if not c.is_standard_init}

    def choose(name: str, count: int, pool: Mask) -> Mask:
        own = kept.get(name, EMPTY) & pool
        others = Mask.union(cpus for other, cpus in lasting.items() if other != name)
        free = pool - own - (others if name in lasting else EMPTY)
        return own | nearest(topology, options, own, free, count - len(own))

    return divided(budget, demand, lambda each, pool: choose(each.name, each.cpus, pool))


def _infeasible(message: str, remedy: str = "") -> Rejection:
    return Rejection(Reason.INFEASIBLE, message, remedy=remedy, resource=CPU)
