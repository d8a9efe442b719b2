from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.cpu.pod_level import CpuPart, divide_cpus, empty_pool_problem
from agent.managers.policy import CpuPolicyOptions
from sysfs.mask import Mask
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar

if TYPE_CHECKING:
    from agent.managers.demand import PodDemand
    from agent.pods.model import Container, Resources


def demand(*containers: Container) -> PodDemand:
    """Return the demand of a pod with a budget of four CPUs."""
    asked = pod(*containers, of_pod=guaranteed("cpu=4 memory=4Gi"))
    return make_rules().demand(asked)


def own(cpus: int) -> Resources:
    return guaranteed(f"cpu={cpus} memory=1Gi")


class TestEmptyPool:
    @pytest.mark.parametrize(
        ("containers", "problem"),
        [
            ((app("a", own(4)), app("b")), "none is left for its shared containers"),
            ((app("a", own(2)), sidecar("s", own(2)), app("b")), "exclusive containers take all 4"),
            ((sidecar("s"), app("a", own(4))), "none is left for its shared containers"),
            ((sidecar("s", own(4)), init("i")), "none is left for the shared init container i"),
            ((sidecar("s", own(2)), init("i", own(3))), "init container i asks for 3 CPUs"),
        ],
    )
    def test_some_container_is_left_without(
        self, containers: tuple[Container, ...], problem: str
    ) -> None:
        assert problem in (empty_pool_problem(demand(*containers)) or "")


class TestDivision:
    def test_the_policy_options_choose_within_the_budget(self) -> None:
        spread = CpuPolicyOptions(distribute_cpus_across_cores=True)
        bubble = Mask.parse("0-1,8-9")
        asked = demand(app("a", own(2)), app("b"))
        packed = divide_cpus(SMT.cpus, CpuPolicyOptions(), bubble, asked)
        assert packed["a"] == CpuPart(Mask.of(0, 8), exclusive=True)
        assert divide_cpus(SMT.cpus, spread, bubble, asked)["a"].cpus == Mask.of(0, 1)
