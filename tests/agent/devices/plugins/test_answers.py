"""Answers of plugins are taken as they are, or rejected as a whole with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.devices.cdi import checked
from agent.devices.lists import (
    MOST_ENTRIES,
    AnswerError,
    PluginOptions,
    read_delivery,
    read_options,
    read_preference,
)
from agent.devices.plugin_limits import LONGEST_ANSWER
from agent.devices.provider import DeviceError
from agent.managers.allocation import Delivery, DeviceNode, Mount
from agent.rpc import V1BETA1

if TYPE_CHECKING:
    from collections.abc import Callable

FOUR = frozenset("abcd")


def preference(*containers: tuple[str, ...]) -> bytes:
    responses = [{"deviceIDs": ids} for ids in containers]
    data: bytes = V1BETA1["PreferredAllocationResponse"](
        container_responses=responses
    ).SerializeToString()
    return data


def allocation(*containers: dict[str, object]) -> bytes:
    data: bytes = V1BETA1["AllocateResponse"](container_responses=containers).SerializeToString()
    return data


def path_entry(container: str, host: str, **more: object) -> dict[str, object]:
    return {"container_path": container, "host_path": host, **more}


def node(container: str = "/dev/x", host: str = "/dev/x", letters: str = "rw") -> dict[str, object]:
    return {"devices": [path_entry(container, host, permissions=letters)]}


def mount(container: str, host: str) -> dict[str, object]:
    return {"mounts": [path_entry(container, host)]}


#: Everything that has a path, made of one.
PATHS: tuple[Callable[[str], dict[str, object]], ...] = (
    lambda path: node(container=path),
    lambda path: node(host=path),
    lambda path: mount(path, "/x"),
    lambda path: mount("/x", path),
)


def test_options_are_read() -> None:
    raw = V1BETA1["DevicePluginOptions"](pre_start_required=True).SerializeToString()
    assert read_options(raw) == PluginOptions(pre_start=True)
    assert read_options(b"") == PluginOptions()


class TestPreference:
    def test_fitting_ids_are_taken_in_the_order_of_the_plugin(self) -> None:
        assert read_preference(preference(("d", "b")), FOUR, frozenset("b"), 2) == ("d", "b")

    @pytest.mark.parametrize("raw", [b"", preference(()), preference()])
    def test_an_empty_answer_states_no_preference(self, raw: bytes) -> None:
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
    def test_an_answer_that_does_not_fit_is_rejected(self, raw: bytes, words: str) -> None:
        with pytest.raises(AnswerError, match=words):
            read_preference(raw, FOUR, frozenset("b"), 2)


class TestDelivery:
    def test_everything_that_a_plugin_can_deliver_is_taken(self) -> None:
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

    def test_a_container_may_get_nothing(self) -> None:
        assert read_delivery(allocation({})) == Delivery()

    @pytest.mark.parametrize(
        ("raw", "words"),
        [
            (allocation(), "0 containers are answered, 1 was asked for"),
            (allocation({}, {}), "2 containers are answered"),
            (b"\x0a\x05", "cannot be decoded as AllocateResponse"),
            (b"\x00" * (LONGEST_ANSWER + 1), "bytes, 1048576 are allowed"),
            (
                allocation({"envs": {str(n): "" for n in range(MOST_ENTRIES + 1)}}),
                "1025 environment variables, 1024 are allowed",
            ),
            (
                allocation({"mounts": [path_entry("/a", "/b")] * (MOST_ENTRIES + 1)}),
                "1025 mounts",
            ),
            (
                allocation({"devices": [path_entry("/a", "/b")] * (MOST_ENTRIES + 1)}),
                "1025 device nodes",
            ),
            (
                allocation({"cdi_devices": [{"name": "a/b=c"}] * (MOST_ENTRIES + 1)}),
                "1025 CDI devices",
            ),
        ],
    )
    def test_an_answer_that_cannot_be_read_is_rejected(self, raw: bytes, words: str) -> None:
        with pytest.raises(AnswerError, match=words):
            read_delivery(raw)

    # Shows in differences.md: plugin-lists
    @pytest.mark.parametrize(
        ("answered", "words"),
        [
            *((make(path), "absolute path") for path in ("", "dev/x") for make in PATHS),
            *((make(path), "leads through") for path in ("/dev/../x", "/..") for make in PATHS),
            *(
                (make(path), "cannot be printed")
                for path in ("/a\nb", "/a\x00", "/a\u202eb")
                for make in PATHS
            ),
            *((make("/" + "a" * 4095), "longer than the kernel") for make in PATHS),
            *((node(letters=each), "are not of r, w and m") for each in ("", "rwx", "RW", "rrrr")),
            *(
                ({kind: {name: "a"}}, f"the {what} .* has a name that cannot be given")
                for kind, what in (("envs", "variable"), ("annotations", "annotation"))
                for name in ("", "A=B", "A B", "A\n", "\u00e9")
            ),
            ({"envs": {"A": "a\0"}}, "has control characters"),
            ({"annotations": {"a": "\0"}}, "has control characters"),
            ({"envs": {"A": "a" * (1 << 17)}}, "longer than the kernel allows"),
            *(
                ({"cdi_devices": [{"name": name}]}, "a CDI device is named vendor/class=name")
                for name in ("", "gpu", "a/b", "a/b=", "/b=c", "a/b=c\n", "a/b=c/d")
            ),
        ],
    )
    def test_what_no_container_can_get_is_rejected_before_it_is_used(
        self, answered: dict[str, object], words: str
    ) -> None:
        delivery = read_delivery(allocation(answered))
        with pytest.raises(DeviceError, match=words):
            checked(delivery, "plugin", "example.com/gpu")
