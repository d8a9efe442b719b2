"""An older checkpoint (a backup, a snapshot, a rollback) beside pods that run."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest
from agent.config.model import CgroupDriver
from agent.server import wiring as assembly
from agent.state.store import CHECKPOINT_NAME
from cgroupfs.names import Tier
from sysfs.mask import Mask
from tests.agent.server.sites import make_site, pod_of, site_config, with_agent
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    make_world,
    manifest,
    next_event,
    running,
)
from tests.fakes.effects import Effects, die_before
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.server.controller import Controller
    from tests.agent.server.sites import Site
    from tests.agent.server.support import World
    from tests.fakes.effects import Step

ONE, TWO, THREE = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2, 3))
NAMES = {ONE: "one", TWO: "two", THREE: "three"}


@pytest.fixture(params=list(CgroupDriver))
def site(request: pytest.FixtureRequest, tmp_path: Path, host_root: Path) -> Site:
    """Make a host without devices: which of them a recovered pod has would be a condition."""
    made = make_site(site_config(make_world(tmp_path, host_root).config, request.param))
    made.devices = {}
    return made


def cpus(site: Site, uid: str) -> Mask:
    pod = site.cgroup(uid)
    (pid,) = (
        pid for name in site.kernel.children(pod) for pid in site.kernel.procs(f"{pod}/{name}")
    )
    return site.kernel.allowed(pid)[0]


def run(site: Site, uid: str) -> None:
    site.start(site.cgroup(uid), f"{NAMES[uid]}-main")


async def admit(controller: Controller, uid: str) -> None:
    assert (await controller.admit(pod_of(NAMES[uid], uid, "main=2"))).admitted


def put_back(site: Site, backup: bytes) -> None:
    site.disk = pickle.loads(backup)  # noqa: S301  # our own bytes


def allocated(controller: Controller) -> dict[str, str]:
    return {
        uid: str(allocation.exclusive_cpus)
        for uid, allocation in controller.state.ledger.allocations.items()
    }


def with_pod_one(site: Site) -> bytes:
    """Let pod one run; return a backup of the checkpoint."""

    async def begin(controller: Controller) -> bytes:
        await admit(controller, ONE)
        run(site, ONE)
        await controller.reconcile()
        return pickle.dumps(site.disk)

    return with_agent(site, begin)


def let_pod_two_run(site: Site, *, instead: bool = False) -> Mask:
    """Let pod two run, beside pod one or in its place; return where it may run."""

    async def begin(controller: Controller) -> Mask:
        if instead:
            await controller.remove(ONE)
        await admit(controller, TWO)
        run(site, TWO)
        await controller.reconcile()
        return cpus(site, TWO)

    return with_agent(site, begin)


def test_a_pod_that_runs_keeps_its_cpus_until_it_is_admitted_again(site: Site) -> None:
    backup = with_pod_one(site)

    async def begin_again(controller: Controller) -> None:
        assert allocated(controller) == {ONE: "1,9", TWO: "2,10"}
        await controller.reconcile()
        assert controller.state.reading().conditions == {"AllocationConfirmed": 1}
        (condition,) = controller.state.condition_lines()
        assert f"pod uid {TWO} was recovered from its cgroups with CPUs 2,10" in condition
        with controller.events.watch() as watcher:
            controller.outcomes.note_recovered()
            assert (await next_event(watcher, "PodRecovered")).uid == TWO
        await admit(controller, THREE)
        assert allocated(controller) == {ONE: "1,9", TWO: "2,10", THREE: "3,11"}
        assert (cpus(site, ONE), cpus(site, TWO)) == (Mask.of(1, 9), Mask.of(2, 10))
        saved = site.saved()
        assert saved is not None
        assert TWO in saved.ledger.allocations
        await admit(controller, TWO)
        assert controller.state.condition_lines() == ()
        assert allocated(controller)[TWO] == "2,10"
        assert controller.state.ledger.allocations[TWO].name == "two"

    assert let_pod_two_run(site) == Mask.of(2, 10)
    put_back(site, backup)
    with_agent(site, begin_again)


def test_a_pod_of_the_checkpoint_gives_way_to_the_one_that_has_its_cpus_now(site: Site) -> None:
    async def begin(controller: Controller) -> bytes:
        await admit(controller, ONE)
        return pickle.dumps(site.disk)

    async def begin_again(controller: Controller) -> None:
        assert allocated(controller) == {TWO: "1,9"}
        condition = next(line for line in controller.state.condition_lines() if ONE in line)
        assert condition == (
            f"the checkpoint allocates CPUs 1,9 to pod default/one (uid {ONE}), but pod {TWO} runs "
            "there: it no longer has an allocation, its processes run in the node's shared pool; "
            "admit the pod again"
        )
        with controller.events.watch() as watcher:
            controller.outcomes.note_recovered()
            assert (await next_event(watcher, "AllocationDisplaced")).uid == ONE
        await controller.reconcile()
        assert cpus(site, TWO) == Mask.of(1, 9)
        # What the condition advises.
        await admit(controller, ONE)
        assert allocated(controller) == {TWO: "1,9", ONE: "2,10"}
        assert not any(ONE in line for line in controller.state.condition_lines())

    backup = with_agent(site, begin)
    assert let_pod_two_run(site, instead=True) == Mask.of(1, 9)
    put_back(site, backup)
    with_agent(site, begin_again)


def test_a_removed_pod_that_runs_on_is_not_resurrected_wherever_the_agent_dies(site: Site) -> None:
    async def nothing_is_allocated(controller: Controller) -> None:
        assert allocated(controller) == {}
        assert controller.state.condition_lines() == ()
        await controller.reconcile()

    with_pod_one(site)
    effects = Effects(looks=False)
    with_agent(site.copy(), lambda controller: controller.remove(ONE), effects)
    saved = next(step for step in effects.log if step.name == "sync_directory")
    later = [step for step in effects.log if step.number > saved.number]
    assert later, "the pod is confined after it was saved"
    for step in later:
        dying = site.copy()
        with pytest.raises(Died):
            with_agent(
                dying,
                lambda controller: controller.remove(ONE),
                Effects(die_before(step.number), looks=False),
            )
        with_agent(dying, nothing_is_allocated)
        assert cpus(dying, ONE) == Mask.parse("0-15")


def test_a_removed_pod_is_remembered_until_its_cgroup_is_gone(site: Site) -> None:
    with_pod_one(site)

    def orphaned() -> frozenset[str]:
        saved = site.saved()
        assert saved is not None
        return saved.orphaned

    async def remove(controller: Controller) -> None:
        await controller.remove(ONE)
        await controller.reconcile()

    async def end(controller: Controller) -> None:
        site.end(site.container(site.cgroup(ONE), "one-main"))
        await controller.reconcile()

    with_agent(site, remove)
    assert orphaned() == {ONE}
    with_agent(site, end)
    assert orphaned() == frozenset()


def test_a_rejected_pod_that_runs_holds_nothing_after_a_restart(
    tmp_path: Path, host_root: Path
) -> None:
    """With a strict reservation the shared pool looks like an allocation (`managers.recovery`)."""
    config = site_config(make_world(tmp_path, host_root).config, CgroupDriver.CGROUPFS)
    options = {**config.cpu_manager_policy_options, "strict-cpu-reservation": "true"}
    strict = make_site(replace(config, cpu_manager_policy_options=options))

    async def run_anyway(controller: Controller) -> None:
        await admit(controller, ONE)
        pod = strict.cgroup(TWO)
        strict.kernel.mkdir(pod)
        strict.start(pod, "main")
        await controller.reconcile()
        assert cpus(strict, TWO) == Mask.parse("2-8,10-15")

    async def compare(controller: Controller) -> None:
        assert allocated(controller) == {ONE: "1,9"}

    with_agent(strict, run_anyway)
    with_agent(strict, compare)


def test_after_a_reboot_every_allocation_is_as_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "running_boot", lambda _: "before")
    with_pod_one(site)

    async def leave_an_orphan(controller: Controller) -> None:
        await admit(controller, TWO)
        await controller.remove(ONE)
        await controller.reconcile()
        assert controller.state.durable.orphaned == {ONE}

    async def compare(controller: Controller) -> None:
        assert allocated(controller) == {TWO: "2,10"}
        assert controller.state.durable.orphaned == frozenset(), "no cgroup outlives a reboot"
        assert controller.state.condition_lines() == ()

    with_agent(site, leave_an_orphan)
    monkeypatch.setattr(assembly, "running_boot", lambda _: "after")
    with_agent(site.rebooted(site.disk), compare)


def test_bindings_of_the_older_checkpoint_never_lead_to_cpus_of_a_running_pod(site: Site) -> None:
    bound = site.start_elsewhere("service")

    async def bind(controller: Controller) -> bytes:
        await admit(controller, ONE)
        await controller.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        return pickle.dumps(site.disk)

    async def begin_again(controller: Controller) -> None:
        assert allocated(controller) == {TWO: "1,9"}
        await controller.reconcile()
        (pid,) = site.kernel.procs(bound)
        assert site.kernel.allowed(pid)[0] == Mask.parse("0,2-8,10-15")
        assert cpus(site, TWO) == Mask.of(1, 9)

    backup = with_agent(site, bind)
    let_pod_two_run(site, instead=True)
    put_back(site, backup)
    with_agent(site, begin_again)


def test_a_tree_that_cannot_be_read_at_the_start_is_a_condition_and_no_end(site: Site) -> None:
    with_pod_one(site)

    def unreadable(step: Step, do: Callable[[], object]) -> object:
        if step.where == "cgroup" and step.name == "children":
            raise OSError(5, "Input/output error", step.subject)
        return do()

    async def look(controller: Controller) -> tuple[str, ...]:
        assert allocated(controller) == {ONE: "1,9"}
        return controller.state.condition_lines()

    lines = with_agent(site, look, Effects(unreadable), from_start=True)
    assert any("the cgroups of running pods cannot be read" in line for line in lines)


@in_loop
async def test_pods_of_the_manifest_directory_are_confirmed_or_admitted_again(world: World) -> None:
    directory = world.manifest_directory()
    path = world.config.agent.state_directory / CHECKPOINT_NAME
    (directory / "web.yaml").write_bytes(manifest())
    async with running(world):
        pass
    older = path.read_bytes()
    (directory / "web.yaml").unlink()
    (directory / "db.yaml").write_bytes(manifest("db", OTHER_UID))
    async with running(world) as agent:
        pod = f"kubepods/pod{OTHER_UID}"
        world.kernel.mkdir(f"{pod}/c0")
        world.kernel.spawn(f"{pod}/c0", 4711)
        await agent.ask(agent.client.reconcile)
        assert world.cpus_of(f"{pod}/c0") == "1,9"
    path.write_bytes(older)
    (directory / "web.yaml").write_bytes(manifest())
    async with running(world) as agent:
        assert (await asyncio.to_thread(agent.client.status)).condition_lines() == ()
        pods = await asyncio.to_thread(agent.client.pods)
        assert {(pod.uid, pod.exclusive_cpus, pod.source) for pod in pods} == {
            (OTHER_UID, "1,9", str(directory / "db.yaml")),
            (UID, "2,10", str(directory / "web.yaml")),
        }
        assert world.cpus_of(f"{pod}/c0") == "1,9"


def test_the_tier_of_a_pod_is_part_of_what_runs(site: Site) -> None:
    """A cgroup of the same uid in another class is not the pod's."""
    backup = with_pod_one(site)

    async def begin_again(controller: Controller) -> None:
        assert allocated(controller) == {ONE: "1,9"}
        await controller.reconcile()
        assert cpus(site, ONE) == Mask.of(1, 9)

    burstable = site.cgroup(ONE, Tier.BURSTABLE)
    if site.systemd is None:
        site.kernel.mkdir(burstable.rpartition("/")[0])
        site.kernel.mkdir(burstable)
    site.start(burstable, "other")
    put_back(site, backup)
    with_agent(site, begin_again)


def test_a_binding_of_a_recovered_container_ends_when_the_pod_has_no_such_container(
    site: Site,
) -> None:
    """Until it is admitted again a recovered pod has containers by the names of their cgroups."""
    backup = with_pod_one(site)
    bound = site.start_elsewhere("service")

    async def bind_and_confirm(controller: Controller) -> None:
        (shown,) = controller.state.ledger.allocations[TWO].containers
        assert shown.name.startswith("two-main")
        await controller.bind(TWO, shown.name, BindRequest(cgroup=f"/{bound}"))
        await admit(controller, TWO)
        assert controller.state.durable.bindings.released == (bound,)
        (pid,) = site.kernel.procs(bound)
        assert site.kernel.allowed(pid)[0] == Mask.parse("0,3-8,11-15")

    let_pod_two_run(site)
    put_back(site, backup)
    with_agent(site, bind_and_confirm)
