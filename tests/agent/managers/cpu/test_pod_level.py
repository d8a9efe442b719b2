from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.cpu.pod_level import CpuPart, divide_cpus, empty_pool_problem
from agent.managers.cpu.take import NotEnoughCpusError
from agent.managers.policy import CpuPolicyOptions
from sysfs.mask import Mask
from tests.agent.managers.hosts import PLAIN, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar

if TYPE_CHECKING:
    from agent.managers.demand import PodDemand
    from agent.pods.model import Container, Resources

BUBBLE = Mask.parse("1-4")


def demand(*containers: Container) -> PodDemand:
    """Return the demand of a pod with a budget of four CPUs."""
    asked = pod(*containers, of_pod=guaranteed("cpu=4 memory=4Gi"))
    return make_rules().demand(asked)


def own(cpus: int) -> Resources:
    return guaranteed(f"cpu={cpus} memory=1Gi")


def divided(*containers: Container) -> dict[str, str]:
    parts = divide_cpus(PLAIN.cpus, CpuPolicyOptions(), BUBBLE, demand(*containers))
    return {name: f"{part.cpus}{' own' * part.exclusive}" for name, part in parts.items()}


class TestEmptyPool:
    @pytest.mark.parametrize(
        "containers",
        [
            (app("a"), app("b")),
            (app("a", own(3)), app("b")),
            (app("a", own(2)), app("b", own(2))),
            (init("i"), app("a", own(2)), app("b", own(2))),
            (init("i", own(4)), app("a", own(2)), app("b")),
            (init("i", own(4)), sidecar("s", own(2)), app("a", own(2))),
        ],
    )
    def test_every_container_has_some_cpus(self, containers: tuple[Container, ...]) -> None:
        assert empty_pool_problem(demand(*containers)) is None

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

    def test_only_sidecars_before_an_init_container_take_from_it(self) -> None:
        later = demand(init("i"), sidecar("s", own(3)), app("a"))
        assert empty_pool_problem(later) is None


class TestDivision:
    def test_the_policy_options_choose_within_the_budget(self) -> None:
        spread = CpuPolicyOptions(distribute_cpus_across_cores=True)
        bubble = Mask.parse("0-1,8-9")
        asked = demand(app("a", own(2)), app("b"))
        packed = divide_cpus(SMT.cpus, CpuPolicyOptions(), bubble, asked)
        assert packed["a"] == CpuPart(Mask.of(0, 8), exclusive=True)
        assert divide_cpus(SMT.cpus, spread, bubble, asked)["a"].cpus == Mask.of(0, 1)

    def test_more_than_the_budget_is_an_error(self) -> None:
        with pytest.raises(NotEnoughCpusError):
            divided(app("a", own(3)), app("b", own(2)))
