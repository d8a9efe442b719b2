from __future__ import annotations

import json
from typing import Any

from agent.managers.admission import admit
from agent.managers.allocation import ContainerAllocation, Isolation, MemoryBlock, PodAllocation
from agent.pods.model import ContainerKind, QosClass
from agent.server.allocation_log import (
    BYTES_LOGGED,
    DEVICES_LOGGED,
    allocation_fields,
    allocation_line,
)
from agent.server.log import ITEMS_LOGGED
from sysfs.mask import Mask
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod

POOL = Mask.parse("0,4-7")


NIC = "example.org/nic"


def own(name: str, cpus: str, node: int, *nics: str) -> ContainerAllocation:
    memory = (MemoryBlock("memory", 4096, Mask.of(node)),)
    of_its_own = (Isolation.CONTAINER, Mask.parse(cpus), memory, {NIC: nics})
    return ContainerAllocation(name, ContainerKind.APP, *of_its_own, why="Guaranteed")


def logged(*containers: ContainerAllocation) -> dict[str, Any]:
    allocation = PodAllocation("u", "web", "shop", QosClass.GUARANTEED, "digest", containers)
    return dict(allocation_fields(allocation, POOL))


def line_of(*containers: ContainerAllocation) -> str:
    return allocation_line(
        PodAllocation("u", "web", "shop", QosClass.GUARANTEED, "digest", containers)
    )


def test_each_container_is_logged_with_what_it_got_and_why() -> None:
    shared = ContainerAllocation("b", ContainerKind.APP, why="a fraction")
    assert logged(own("a", "1-2", 0, "n0"), shared) == {
        "containers": [
            {
                "name": "a",
                "cpus": "1-2",
                "isolation": "container",
                "sharing": "own",
                "mems": "0",
                "devices": {NIC: ["n0"]},
                "why": "Guaranteed",
            },
            {
                "name": "b",
                "cpus": "0,4-7",
                "isolation": "host",
                "sharing": "node",
                "mems": None,
                "devices": {},
                "why": "a fraction",
            },
        ]
    }


def test_an_event_says_in_a_line_what_a_pod_has_for_itself() -> None:
    first, second = own("a", "1-2", 0, "n0", "n1"), own("b", "4", 1, "n2")
    assert line_of(first) == "exclusive CPUs 1-2, memory on node 0, 2 example.org/nic"
    assert line_of(first, second) == "exclusive CPUs 1-2,4, memory on nodes 0-1, 3 example.org/nic"
    assert line_of(ContainerAllocation("c", ContainerKind.APP, why="shares")) == ""


def test_of_very_many_containers_the_first_are_logged_and_the_others_counted() -> None:
    many = [ContainerAllocation(f"c{n}", ContainerKind.APP, why="shares") for n in range(1000)]
    fields = logged(*many)
    assert len(fields["containers"]) == ITEMS_LOGGED
    assert fields["containers_left_out"] == 1000 - ITEMS_LOGGED


def test_a_line_stays_short_whatever_is_in_it() -> None:
    """Sets of every other of 8,192 CPUs, long reasons, very many devices."""
    odd = Mask(int("01" * 4096, 2))
    devices = {f"d{n}": tuple(f"{n}-{device}" for device in range(500)) for n in range(3)}
    many = [
        ContainerAllocation(
            "c" * 63, ContainerKind.APP, Isolation.CONTAINER, odd, (), devices, why="w" * 9999
        )
        for _ in range(1000)
    ]
    fields = logged(*many)
    assert 0 < len(json.dumps(fields)) < BYTES_LOGGED + 1000
    shown = fields["containers"][0]["devices"]["d0"]
    assert shown[DEVICES_LOGGED:] == [f"and {500 - DEVICES_LOGGED} more"]
    assert len(fields["containers"]) + fields["containers_left_out"] == 1000


def test_budget_that_no_container_can_use_is_logged() -> None:
    rules = make_rules()
    lonely = pod(app("c", guaranteed("cpu=2 memory=1Gi")), of_pod=guaranteed("cpu=5 memory=1Gi"))
    allocation = admit(rules, rules.empty_ledger(), lonely).allocation
    assert allocation is not None
    assert allocation_fields(allocation, POOL)["unused_budget"] == {"cpu": 3}
