"""Several providers of devices are one: what they offer together, answer and deliver."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from agent.devices.providers import DeliveryError, Providers, allocated_nodes, variable_of
from agent.managers.allocation import ContainerAllocation, PodAllocation
from agent.managers.decision import Question
from agent.managers.delivery import Delivery, Mount, conflicts, merged
from agent.managers.policy import PluginDevice
from agent.pods.model import ContainerKind, QosClass
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GPU: Final = "example.com/gpu"
NIC: Final = "example.com/nic"
ONE: Final = tuple(map(PluginDevice, "abc"))
TWO: Final = tuple(map(PluginDevice, "abcd"))


def allocated(*containers: Mapping[str, tuple[str, ...]]) -> PodAllocation:
    return PodAllocation(
        uid="u",
        name="p",
        namespace="default",
        qos=QosClass.GUARANTEED,
        spec_digest="d",
        containers=tuple(
            ContainerAllocation(f"c{number}", ContainerKind.APP, devices=MappingProxyType(devices))
            for number, devices in enumerate(containers)
        ),
    )


def delivered(providers: Providers, allocation: PodAllocation) -> list[dict[str, str]]:
    async def deliver() -> PodAllocation:
        deadline = asyncio.get_running_loop().time() + 0.05
        return await providers.delivered(allocation, deadline)

    found = asyncio.run(deliver())
    return [dict(each.delivery.environment) for each in found.containers]


def test_a_resource_that_two_offer_is_the_firsts_and_the_other_has_a_condition() -> None:
    first = FakeProvider("first", {GPU: ONE})
    second = FakeProvider("second", {GPU: TWO, NIC: TWO}, frozenset({GPU, NIC}))
    providers = Providers([first, second])
    assert dict(providers.offer().devices) == {GPU: ONE, NIC: TWO}
    assert providers.offer().preferring == {NIC}
    message = f"{GPU} is not taken from here: first offers it as well"
    assert list(providers.conditions()) == [("second", message)]


def test_devices_that_the_configuration_lists_are_taken_from_no_provider() -> None:
    provider = FakeProvider("plugins", {GPU: ONE}, frozenset({GPU}), lines=("a line",))
    providers = Providers([provider], [GPU])
    assert providers.offer().devices == {}
    message = f"{GPU} is not taken from here: agent.devices lists its devices"
    assert list(providers.conditions()) == [("plugins", "a line"), ("plugins", message)]
    assert delivered(providers, allocated({GPU: ("one",)})) == [{variable_of(GPU): "one"}]
    assert provider.calls == []


def test_the_variable_of_listed_devices_is_a_name_that_shells_accept() -> None:
    assert variable_of("example.com/a-b.c") == "NUMAWARDEN_DEVICES_EXAMPLE_COM_A_B_C"
    assert variable_of("exämple.com/x") == "NUMAWARDEN_DEVICES_EX_MPLE_COM_X"


def test_each_question_is_answered_by_the_provider_of_its_resource() -> None:
    first = FakeProvider("first", {GPU: ONE}, prefers={GPU: ("one",)})
    second = FakeProvider("second", {NIC: TWO}, prefers={NIC: ("two",)})
    questions = [Question(each, frozenset(), frozenset(), 1) for each in (NIC, GPU, "other/x")]
    answers = asyncio.run(Providers([first, second]).answers(questions))
    assert [answers[each] for each in questions] == [("two",), ("one",), ()]


def test_devices_are_allocated_by_container_and_later_prepared() -> None:
    provider = FakeProvider("plugins", {GPU: ONE, NIC: TWO})
    allocation = allocated({GPU: ("a", "b"), NIC: ("c",)}, {}, {NIC: ("d",)})
    providers = Providers([provider], configured=("a/listed",))
    assert delivered(providers, allocation) == [
        {"DEVICES_gpu": "a,b", "DEVICES_nic": "c"},
        {},
        {"DEVICES_nic": "d"},
    ]
    asked = [(GPU, "a,b"), (NIC, "c"), (NIC, "d")]
    assert provider.calls == [("allocate", *each) for each in asked]
    assert providers.prepares(allocation)
    assert not providers.prepares(allocated({"a/listed": ("n",)}, {}))
    prepared(providers, allocation)
    assert provider.calls[3:] == [("start", *each) for each in asked]


def prepared(providers: Providers, allocation: PodAllocation) -> None:
    asyncio.run(providers.prepare(allocation))


@pytest.mark.parametrize(("attribute", "use"), [("fails", delivered), ("unprepared", prepared)])
def test_a_failure_names_container_resource_and_devices(
    attribute: str, use: Callable[[Providers, PodAllocation], object]
) -> None:
    provider = FakeProvider("plugins", {GPU: ONE, NIC: TWO})
    setattr(provider, attribute, {NIC: "plugin of nic: broken"})
    with pytest.raises(DeliveryError) as caught:
        use(Providers([provider]), allocated({GPU: ("a",)}, {NIC: ("c", "d")}))
    error = caught.value
    assert (error.container, error.resource, error.ids) == ("c1", NIC, ("c", "d"))
    assert (error.message, error.remedy) == ("plugin of nic: broken", "try another plugin")


def test_a_provider_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.devices.providers.PREPARE_SECONDS", 0.05)
    provider = FakeProvider("plugins", {GPU: ONE}, fails={GPU: ""}, unprepared={GPU: ""})
    allocation = allocated({GPU: ("a",)})
    with pytest.raises(DeliveryError, match="was not delivered in the time"):
        delivered(Providers([provider]), allocation)
    with pytest.raises(DeliveryError, match=r"did not prepare a of example.com/gpu within 0.05 s"):
        prepared(Providers([provider]), allocation)


def test_what_is_no_longer_offered_or_no_container_can_get_is_not_delivered() -> None:
    provider = FakeProvider("plugins", {GPU: ONE})
    with pytest.raises(DeliveryError, match="plugins no longer offers z of "):
        delivered(Providers([provider]), allocated({GPU: ("z",)}))
    with pytest.raises(DeliveryError, match=f"plugins delivered for {GPU} what no container can"):
        delivered(Providers([provider]), allocated({GPU: ("a\n",)}))
    for use in (delivered, prepared):
        with pytest.raises(DeliveryError, match=f"{NIC} is no longer offered"):
            use(Providers([provider]), allocated({NIC: ("c",)}))


def test_the_ids_of_all_allocations_are_collected_by_resource() -> None:
    one, other = allocated({GPU: ("a",)}, {GPU: ("a", "b")}), allocated({GPU: ("c",), NIC: ("d",)})
    found = allocated_nodes({"1": one, "2": other})
    assert {name: set(nodes) for name, nodes in found.items()} == {GPU: {"a", "b", "c"}, NIC: {"d"}}


# Shows in differences.md: conflicting-settings
def test_settings_that_conflict_are_logged_and_the_first_counts() -> None:
    one = Delivery(environment={"A": "1", "B": "x"}, mounts=(Mount("/m", "/one"),))
    other = Delivery(environment={"A": "2", "B": "x"}, mounts=(Mount("/m", "/other"),))
    assert list(conflicts([(GPU, one), (NIC, other)])) == [
        f"variable A of {NIC} differs from that of {GPU}, which counts",
        f"mount at /m of {NIC} differs from that of {GPU}, which counts",
    ]
    assert merged([one, other]) == one
    # Of the fake, resources whose names end alike set one variable.
    same = "other.com/gpu"
    provider = FakeProvider("plugins", {GPU: ONE, same: TWO})
    with capture_logs() as log:
        found = delivered(Providers([provider]), allocated({same: ("b",), GPU: ("a",)}))
    assert found == [{"DEVICES_gpu": "a"}]
    conflict = f"variable DEVICES_gpu of {same} differs from that of {GPU}, which counts"
    assert [(line["event"], line["conflict"]) for line in log] == [
        ("conflicting setting", conflict)
    ]
