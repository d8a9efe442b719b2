"""Answers of plugins are taken as they are, or rejected as a whole with the reason."""

from __future__ import annotations

import pytest

from agent.devices.lists import (
    MOST_ENTRIES,
    AnswerError,
    PluginOptions,
    read_delivery,
    read_options,
    read_preference,
)
from agent.devices.plugin_limits import LONGEST_ANSWER
from agent.managers.delivery import Delivery, DeviceNode, Mount
from tests.fakes.device_plugin import encoded

FOUR = frozenset("abcd")
MANY: list[dict[str, object]] = [{}] * (MOST_ENTRIES + 1)
MANY_PAIRS = {str(number): "" for number in range(MOST_ENTRIES + 1)}


def preference(*containers: tuple[str, ...]) -> bytes:
    responses = [{"deviceIDs": ids} for ids in containers]
    return encoded("PreferredAllocationResponse", container_responses=responses)


def allocation(*containers: dict[str, object]) -> bytes:
    return encoded("AllocateResponse", container_responses=containers)


def path_entry(container: str, host: str, **more: object) -> dict[str, object]:
    return {"container_path": container, "host_path": host, **more}


def test_options_are_read() -> None:
    raw = encoded("DevicePluginOptions", pre_start_required=True)
    assert read_options(raw) == PluginOptions(pre_start=True)
    assert read_options(b"") == PluginOptions()


def test_fitting_ids_are_taken_in_the_order_of_the_plugin() -> None:
    assert read_preference(preference(("d", "b")), FOUR, frozenset("b"), 2) == ("d", "b")


@pytest.mark.parametrize("raw", [b"", preference(()), preference()])
def test_an_empty_answer_states_no_preference(raw: bytes) -> None:
    assert read_preference(raw, FOUR, frozenset("b"), 2) == ()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (preference(("a", "b"), ("c", "d")), "2 containers are answered"),
        (preference(("a",)), "1 devices are preferred, 2 were asked for"),
        (preference(("a", "b", "c")), "3 devices are preferred"),
        (preference(("b", "b")), "1 devices are preferred"),
        (preference(("b", "x")), 'device "x" is preferred, but not available'),
        (preference(("a", "c")), 'device "b" has to be among the preferred'),
        (b"\xff", "cannot be decoded as PreferredAllocationResponse"),
        (b"\x00" * (LONGEST_ANSWER + 1), "bytes, 1048576 are allowed"),
    ],
)
def test_an_answer_that_does_not_fit_is_rejected(raw: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read_preference(raw, FOUR, frozenset("b"), 2)


def test_everything_that_a_plugin_can_deliver_is_taken() -> None:
    raw = allocation(
        {
            "envs": {"VISIBLE": "a,b\n=c", "x.y-z": ""},
            "mounts": [path_entry("/a", "/b", read_only=True), path_entry("/c", "/d")],
            "devices": [path_entry("/dev/x", "/dev/y", permissions="mrw")],
            "annotations": {"example.com/a": "b"},
            "cdi_devices": [{"name": "example.com/gpu=0:1"}],
        }
    )
    assert read_delivery(raw) == Delivery(
        environment={"VISIBLE": "a,b\n=c", "x.y-z": ""},
        mounts=(Mount("/a", "/b", read_only=True), Mount("/c", "/d")),
        device_nodes=(DeviceNode("/dev/x", "/dev/y", "mrw"),),
        annotations={"example.com/a": "b"},
        cdi_devices=("example.com/gpu=0:1",),
    )


def test_a_container_may_get_nothing() -> None:
    assert read_delivery(allocation({})) == Delivery()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (allocation(), "0 containers are answered, 1 was asked for"),
        (allocation({}, {}), "2 containers are answered"),
        (b"\x0a\x05", "cannot be decoded as AllocateResponse"),
        (b"\x00" * (LONGEST_ANSWER + 1), "bytes, 1048576 are allowed"),
        (allocation({"envs": MANY_PAIRS}), "1025 environment variables, 1024 are allowed"),
        (allocation({"annotations": MANY_PAIRS}), "1025 annotations"),
        (allocation({"mounts": MANY}), "1025 mounts"),
        (allocation({"devices": MANY}), "1025 device nodes"),
        (allocation({"cdi_devices": MANY}), "1025 CDI devices"),
    ],
)
def test_an_answer_that_cannot_be_read_is_rejected(raw: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read_delivery(raw)
