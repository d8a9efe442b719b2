"""What a provider answers is checked before it becomes files, mounts and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given

from agent.devices.delivery_checks import LARGEST, checked, delivery_faults
from agent.devices.provider import DeviceError
from agent.managers.delivery import NOTHING, Delivery, DeviceNode, Mount
from tests.agent.devices.pods import DELIVERIES, DELIVERY


@given(DELIVERIES)
def test_what_a_container_can_get_has_no_fault(delivery: Delivery) -> None:
    assert delivery_faults(delivery) == ()


def test_a_delivery_without_fault_is_returned() -> None:
    assert checked(DELIVERY, "plugin", "example.com/gpu") is DELIVERY
    assert checked(NOTHING, "plugin", "example.com/gpu") is NOTHING


_HOSTILE = ("a\nb", "a\0b", "a\x1b[2Jb", "a\x7f", "a\x85b", "a\u2028b", "a\ud800")
_LONG = "/" + "ä" * 2048


def _mounts(path: str) -> tuple[Delivery, ...]:
    """Return deliveries of mounts and device nodes that have a path at either end."""
    return (
        Delivery(mounts=(Mount(path, "/b"),)),
        Delivery(mounts=(Mount("/b", path),)),
        Delivery(device_nodes=(DeviceNode(path, "/b", "rw"),)),
        Delivery(device_nodes=(DeviceNode("/b", path, "rw"),)),
    )


# Shows in differences.md: plugin-lists
@pytest.mark.parametrize(
    ("delivery", "words"),
    [
        *((Delivery(environment={"A": text}), "has control characters") for text in _HOSTILE),
        *((Delivery(annotations={"A": text}), "has control characters") for text in _HOSTILE),
        *(
            (delivery, "has a name that cannot be given")
            for name in (*_HOSTILE, "", "a=b", "a b", "é")
            for delivery in (
                Delivery(environment={name: "A"}),
                Delivery(annotations={name: "A"}),
            )
        ),
        *((each, "cannot be printed") for text in _HOSTILE for each in _mounts(f"/a/{text}")),
        *((each, "leads through") for path in ("/a/..", "/../b", "/.") for each in _mounts(path)),
        *((each, "an absolute path") for path in ("", "a", "./a") for each in _mounts(path)),
        *((each, "longer than the kernel") for each in _mounts(_LONG)),
        *((_mounts(path)[at], "replace all") for path in ("/", "//") for at in (0, 2)),
        *(
            (Delivery(device_nodes=(DeviceNode("/a", "/a", letters),)), "are not of r, w and m")
            for letters in ("", "x", "rwx", "r w", "RW", "rw\n", "rrrr")
        ),
        *(
            (Delivery(cdi_devices=(name,)), "a CDI device is named vendor/class=name")
            for name in ("", "/dev/a", "a.com/b=c\n", "a.com/b", "a/b=", "/b=c", "a/b=c/d")
        ),
        *(
            (Delivery(pci_addresses=(text,)), "is not a PCI address")
            for text in ("", "00:1f.2", "0000:00:1f.8", "0000:00:1f.2\n")
        ),
        (Delivery(environment={"A": "b" * ((1 << 17) - 2)}), "longer than the kernel"),
    ],
)
def test_what_no_container_can_get_is_named(delivery: Delivery, words: str) -> None:
    (fault,) = delivery_faults(delivery)
    assert words in fault
    with pytest.raises(
        DeviceError, match=r"^plugin delivered for example\.com/gpu what no"
    ) as raised:
        checked(delivery, "plugin", "example.com/gpu")
    assert raised.value.message.isprintable()
    assert raised.value.remedy


def test_only_the_first_fault_is_named_and_the_others_are_counted() -> None:
    with pytest.raises(DeviceError, match=r"and 1 more$"):
        checked(Delivery(environment={"A": "\n", "B": "\n"}), "plugin", "example.com/gpu")


def test_a_delivery_is_bounded() -> None:
    each = 1 << 16
    names = [f"{number:03}" for number in range(LARGEST // each)]
    values = dict.fromkeys(names, "a" * (each - 3))
    allowed = Delivery(environment=values)
    assert checked(allowed, "plugin", "example.com/gpu") is allowed
    values[names[0]] += "b"
    with pytest.raises(DeviceError, match=f"{LARGEST + 1} bytes, more than {LARGEST}"):
        checked(Delivery(environment=values), "plugin", "example.com/gpu")
