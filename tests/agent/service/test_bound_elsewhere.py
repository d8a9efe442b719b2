"""A container that runs outside of its pod's cgroup, when the pod is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.config.config import CgroupDriver
from agent.wire import BindRequest
from sysfs.mask import Mask
from tests.agent.service.sites import make_site, pod_of, site_config, with_agent
from tests.agent.service.support import make_world

if TYPE_CHECKING:
    from pathlib import Path

    from agent.service.keeper import Keeper

ONE, OTHER = (f"{digit}0000000-2222-3333-4444-555555555555" for digit in (1, 2))


@pytest.mark.parametrize("driver", CgroupDriver)
def test_it_gives_up_its_pods_cpus_and_stays_confined_until_it_ends(
    tmp_path: Path, host_root: Path, driver: CgroupDriver
) -> None:
    site = make_site(site_config(make_world(tmp_path, host_root).config, driver))

    async def bind_and_remove(keeper: Keeper) -> str:
        await keeper.admit(pod_of("one", ONE, "main=2"))
        bound = site.start_elsewhere("service")
        await keeper.bind(ONE, "main", BindRequest(cgroup=f"/{bound}"))
        assert cpus() == Mask.of(1, 9)
        answer = await keeper.remove(ONE)
        (note,) = answer.enforcement.notes
        assert note == (
            f"/{bound} was bound to a container of a pod that is gone; what runs there is confined "
            "to the node's shared pool until it ends"
        )
        return bound

    async def admit_another(keeper: Keeper) -> None:
        await keeper.reconcile()
        await keeper.admit(pod_of("other", OTHER, "main=2"))
        assert keeper.state.ledger.exclusive_cpus == Mask.of(1, 9)

    async def compare(keeper: Keeper) -> int:
        answer = await keeper.reconcile()
        assert answer.problems == ()
        return len(keeper.state.held.bindings)

    def cpus() -> Mask:
        return site.kernel.allowed(site.processes)[0]

    bound = with_agent(site, bind_and_remove)
    assert cpus() == Mask.parse("0-15")
    with_agent(site, admit_another)
    assert cpus() == Mask.parse("0,2-8,10-15")
    assert with_agent(site, compare) == 1
    site.end(bound)
    assert with_agent(site, compare) == 0
    saved = site.saved()
    assert saved is not None
    assert len(saved.bindings) == 0
    assert site.kernel.exists(bound), "it is not the agent's to remove"
