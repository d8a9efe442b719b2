"""What a provider answers is checked before it becomes files, mounts and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given

from agent.devices.cdi import LARGEST, checked, delivery_faults
from agent.devices.provider import DeviceError
from agent.managers.allocation import NOTHING, Delivery, DeviceNode, Mount
from tests.agent.devices.pods import DELIVERIES, DELIVERY


@given(DELIVERIES)
def test_what_a_container_can_get_has_no_fault(delivery: Delivery) -> None:
    assert delivery_faults(delivery) == ()


def test_a_delivery_without_fault_is_returned() -> None:
    assert checked(DELIVERY, "plugin", "example.com/gpu") is DELIVERY
    assert checked(NOTHING, "plugin", "example.com/gpu") is NOTHING


_HOSTILE = ("a\nb", "a\0b", "a\x1b[2Jb", "a\x7f", "a\x85b", "a\u2028b", "a\ud800")


# Shows in differences.md: plugin-lists
@pytest.mark.parametrize(
    "delivery",
    [
        *(Delivery(environment={"A": text}) for text in _HOSTILE),
        *(Delivery(environment={text: "A"}) for text in (*_HOSTILE, "", "a=b", "a b")),
        *(Delivery(annotations={"A": text}) for text in _HOSTILE),
        *(Delivery(annotations={text: "A"}) for text in (*_HOSTILE, "", "a=b")),
        *(Delivery(mounts=(Mount(f"/a/{text}", "/b"),)) for text in (*_HOSTILE, "..", "../b", ".")),
        *(Delivery(mounts=(Mount("/b", f"/a/{text}"),)) for text in (*_HOSTILE, "..", "../b", ".")),
        *(Delivery(mounts=(Mount("/b", path),)) for path in ("", "a", "./a")),
        *(Delivery(mounts=(Mount(path, "/b"),)) for path in ("", "a", "./a", "/", "//")),
        *(
            Delivery(device_nodes=(DeviceNode(f"/{text}", "/b", "rw"),))
            for text in (*_HOSTILE, "..", "")
        ),
        *(
            Delivery(device_nodes=(DeviceNode("/b", f"/{text}", "rw"),))
            for text in (*_HOSTILE, "..")
        ),
        *(
            Delivery(device_nodes=(DeviceNode("/a", "/a", letters),))
            for letters in ("", "x", "rwx", "r w", "none", "rw\n")
        ),
        *(Delivery(cdi_devices=(name,)) for name in ("", "/dev/a", "a.com/b=c\n", "a.com/b")),
        *(
            Delivery(pci_addresses=(text,))
            for text in ("", "00:1f.2", "0000:00:1f.8", "0000:00:1f.2\n")
        ),
        Delivery(environment={"A": "b" * (1 << 17)}),
        Delivery(mounts=(Mount("/" + "a" * 4096, "/b"),)),
        Delivery(mounts=(Mount("/" + "ä" * 2048, "/b"),)),
    ],
)
def test_what_no_container_can_get_is_named(delivery: Delivery) -> None:
    assert len(delivery_faults(delivery)) == 1
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
