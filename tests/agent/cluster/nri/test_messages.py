"""What is read of NRI's messages and written into them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.cluster.nri.events import EVENTS, NriEvent, event_mask, subscription
from agent.cluster.nri.messages import (
    V1ALPHA1,
    Adjustment,
    ContainerResources,
    PodSandbox,
    RuntimeContainer,
    RuntimeInfo,
    adjustment_message,
    update_message,
)
from agent.cluster.nri.ttrpc import LONGEST_WORDS
from agent.managers.numa_policy import NumaMode, NumaPolicy
from sysfs.mask import Mask
from tests.agent.cluster.nri.support import ANSWERED, CONTAINER, IGNORED, NOTED, POD


def test_fields_that_are_not_declared_are_skipped() -> None:
    # Field 10 of a pod (its addresses) and field 9 of a container (a mount) are not declared.
    pod = V1ALPHA1["PodSandbox"](**POD).SerializeToString() + b"\x52\x0810.0.0.1"
    container = V1ALPHA1["Container"](**CONTAINER).SerializeToString() + b"\x4a\x06\x0a\x04/etc"
    assert PodSandbox.of(V1ALPHA1["PodSandbox"].FromString(pod)).uid == "uid-1"
    assert RuntimeContainer.of(V1ALPHA1["Container"].FromString(container)).name == "app"


def test_an_adjustment_has_the_bytes_of_the_wire_format() -> None:
    adjustment = Adjustment(cpus=Mask.parse("2-3"), quota_us=-1, environment={"A": "1"})
    assert adjustment_message(adjustment).SerializeToString() == (
        b"\x22\x06\x0a\x01A\x12\x011"
        b"\x32\x16\x12\x14\x12\x12\x12\x0b\x08" + b"\xff" * 9 + b"\x01\x32\x032-3"
    )


@pytest.mark.parametrize(
    ("adjustment", "cpu"),
    [
        (Adjustment(), {}),
        (Adjustment(cpus=Mask.parse("0,4-6")), {"cpus": "0,4-6"}),
        (Adjustment(mems=Mask.of(1)), {"mems": "1"}),
        (Adjustment(quota_us=-1), {"quota": {"value": -1}}),
        (
            Adjustment(quota_us=150_000, period_us=100_000),
            {"quota": {"value": 150_000}, "period": {"value": 100_000}},
        ),
    ],
)
def test_only_adjustments_are_in_a_message(adjustment: Adjustment, cpu: dict[str, object]) -> None:
    expected = {"resources": {"cpu": cpu}} if cpu else None
    message = adjustment_message(adjustment)
    assert message == V1ALPHA1["ContainerAdjustment"](linux=expected)
    update = update_message("c1", adjustment, ignore_failure=False)
    assert update == V1ALPHA1["ContainerUpdate"](container_id="c1", linux=expected)


@pytest.mark.parametrize(
    ("mode", "number", "flag"), [(NumaMode.INTERLEAVE, 3, 1), (NumaMode.PREFERRED, 5, 0)]
)
def test_a_numa_policy_is_set_at_the_start_alone(mode: NumaMode, number: int, flag: int) -> None:
    adjustment = Adjustment(numa_policy=NumaPolicy(mode, Mask.parse("0-1")))
    message = adjustment_message(adjustment)
    # Field 12 of the container, in it the mode, the nodes, and the packed flags.
    inner = bytes([0x08, number]) + b"\x12\x030-1" + bytes([0x1A, 1, flag])
    linux = bytes([0x62, len(inner)]) + inner
    assert message.SerializeToString() == bytes([0x32, len(linux)]) + linux
    update = update_message("c1", adjustment, ignore_failure=False)
    assert update == V1ALPHA1["ContainerUpdate"](container_id="c1")


@pytest.mark.parametrize(
    ("name", "sets"), [("CPUs", {"cpus": Mask()}), ("memory nodes", {"mems": Mask()})]
)
def test_an_adjustment_to_an_empty_set_cannot_be_made(name: str, sets: dict[str, Mask]) -> None:
    with pytest.raises(ValueError, match=f"an adjustment to no {name}"):
        Adjustment(**sets)  # type: ignore[arg-type]


def test_resources_that_are_given_as_zero_are_not_given() -> None:
    empty = V1ALPHA1["LinuxResources"](
        memory={"limit": {}}, cpu={"shares": {}, "quota": {}, "period": {}}
    )
    assert ContainerResources.of(empty) == ContainerResources()


def test_a_quota_that_is_none_is_given() -> None:
    unlimited = V1ALPHA1["LinuxResources"](cpu={"quota": {"value": -1}})
    assert ContainerResources.of(unlimited) == ContainerResources(quota_us=-1)


def test_other_resources_of_a_sandbox_replace_those_that_they_give() -> None:
    sandbox = PodSandbox("s", "u", "n", "p", cpu_quota=100, cpu_period=1000, cpu_shares=2)
    changed = sandbox.with_resources(ContainerResources(quota_us=-1, shares=5))
    assert (changed.cpu_quota, changed.cpu_period, changed.cpu_shares) == (-1, 1000, 5)
    assert changed.with_resources(ContainerResources(period_us=50)) == replace(
        changed, cpu_period=50
    )


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (0, "unknown"),
        (1, "created"),
        (3, "running"),
        (4, "stopped"),
        (9, "unknown"),
        (-1, "unknown"),
    ],
)
def test_a_state_is_named_and_an_unknown_number_is_unknown(number: int, state: str) -> None:
    container = V1ALPHA1["Container"](state=number)
    assert RuntimeContainer.of(container).state == state


def test_a_variable_without_a_value_is_empty() -> None:
    container = V1ALPHA1["Container"](env=["A", "B=", "C==", "=D"])
    assert RuntimeContainer.of(container).environment == {"A": "", "B": "", "C": "=", "": "D"}


def test_a_negative_timeout_is_none() -> None:
    request = V1ALPHA1["ConfigureRequest"](request_timeout=-5)
    assert RuntimeInfo.of(request).request_timeout_ms == 0


def test_events_have_the_names_and_numbers_of_nri() -> None:
    assert EVENTS["RunPodSandbox"] == 1
    assert EVENTS["PostUpdatePodSandbox"] == 13
    assert event_mask([NriEvent.RUN_POD_SANDBOX, NriEvent.REMOVE_CONTAINER]) == 0x401


@pytest.mark.parametrize(
    ("runtime", "version", "nri_version", "has_updates"),
    [
        ("containerd", "1.7.24~ds1", "", False),
        ("containerd", "v2.1.9", "", False),
        ("containerd", "2.2.0", "", True),
        ("cri-o", "1.33.8", "", False),
        ("cri-o", "1.34.0", "", True),
        ("containerd", "2.3.4-lab", "v0.12.0", True),
        ("containerd", "v2.3.4", "v0.9.0", False),
        ("containerd", "(devel)", "", False),
        ("other", "99.0", "", False),
        ("other", "1.0", "v1.2.3-4-gabcdef0", True),
    ],
)
def test_only_events_are_subscribed_to_that_the_runtime_knows(
    runtime: str, version: str, nri_version: str, *, has_updates: bool
) -> None:
    events = set(subscription(runtime, version, nri_version))
    assert (NriEvent.UPDATE_POD_SANDBOX in events) == has_updates
    assert {*NOTED, *ANSWERED} <= events
    assert not events & set(IGNORED)


def test_the_values_cannot_be_changed() -> None:
    sandbox = PodSandbox.of(V1ALPHA1["PodSandbox"](**POD))
    with pytest.raises(TypeError):
        sandbox.annotations["x"] = "y"  # type: ignore[index]
    with pytest.raises(AttributeError):
        sandbox.uid = "other"  # type: ignore[misc]


def test_a_runtime_that_says_too_much_is_cut() -> None:
    request = V1ALPHA1["ConfigureRequest"](runtime_name="a\n" + "b" * 1000)
    assert RuntimeInfo.of(request).name == "a\\n" + "b" * (LONGEST_WORDS - 4) + "…"
