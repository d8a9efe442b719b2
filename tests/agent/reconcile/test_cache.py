from __future__ import annotations

from msgspec.structs import replace

from agent.reconcile.desired import DesiredCgroup, Role, desired_cgroups
from agent.reconcile.identify import IdentifiedCgroups, identify_cgroups
from agent.reconcile.observe import Observation, ObservationCache
from agent.reconcile.target import AffectedPods
from cgroupfs.plan import Setting
from cgroupfs.state import CgroupState
from sysfs.mask import Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    UID,
    directories,
    kernel,
    layout,
    mixed,
    on_host,
    pod,
    target,
)

WEB = pod(on_host("web"), uid="web")
POOL = ONLINE - Mask.parse("2-7")


def look(scope: AffectedPods | None = None) -> Observation:
    tree = kernel()
    aim = target(mixed(), WEB)
    assert directories(tree).enforce(aim).ok
    identified = identify_cgroups(tree, layout(), aim.ledger, aim.bindings, None, scope)
    return Observation(identified, desired_cgroups(aim, identified), scope=scope).with_states(tree)


def test_a_part_is_remembered_beside_the_rest() -> None:
    memory = ObservationCache()
    memory.note_asked(look())
    part = look(AffectedPods(frozenset({"web"})))
    assert [item.pod for item in part.desired if item.pod] == ["web"]
    memory.note_asked(replace(part, states={}))
    assert not memory.was_asked(part.desired[-1])
    assert all(memory.was_asked(item) == (item.pod == UID) for item in look().desired if item.pod)


def test_a_pod_shares_the_pool_when_its_cgroup_includes_it_or_nothing_is_known() -> None:
    memory = ObservationCache()
    assert memory.shares("web", POOL)
    memory.note_asked(look())
    assert memory.shares("web", POOL)
    assert not memory.shares(UID, POOL)


def test_a_cgroup_shows_its_former_setting_although_its_nodes_are_no_longer_read() -> None:
    memory = ObservationCache()
    item = DesiredCgroup(Setting("pod", Mask.parse("2-3"), Mask.of(0)), Role.POD, UID)
    state = CgroupState(Mask.parse("2-3"), Mask.parse("2-3"), None, None, populated=True)
    known = Observation(IdentifiedCgroups({}), (item,), {"pod": state})
    memory.note_asked(known)
    wider = replace(item, setting=Setting("pod", Mask.parse("2-5")))
    assert memory.shows_former(wider, state)
    assert not memory.shows_former(wider, replace(state, cpus=Mask.of(2)))
    pinned = replace(item, setting=Setting("pod", Mask.parse("2-5"), Mask.of(1)))
    assert not memory.shows_former(pinned, state)
