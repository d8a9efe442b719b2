"""Network interfaces of the live host, as netlink tells them."""

from __future__ import annotations

import os
from typing import Final

from sysfs.netlink import attributes, dump

#: RTM_GETLINK, and the size of `struct ifinfomsg` in request and answer.
_GET_LINKS: Final = 18
_FIXED: Final = 16
_NAME: Final = 3
_PARENT_NAME: Final = 56
_PARENT_BUS: Final = 57


def read_links() -> tuple[tuple[str, str], ...]:
    """Return (interface, PCI address or "") of every link in this network namespace.

    The address is that of `IFLA_PARENT_DEV_NAME` (kernel 5.14 and later); links of older
    kernels and of other buses have "" and are placed by `sys/class/net`. Empty where the system
    refuses netlink (a sandbox without AF_NETLINK): `sys/class/net` then has to do alone.
    """
    try:
        return tuple(_link(answer) for answer in dump(_GET_LINKS, bytes(_FIXED)))
    except OSError:
        return ()


def _link(answer: bytes) -> tuple[str, str]:
    found = attributes(answer[_FIXED:])
    on_pci = _text(found.get(_PARENT_BUS)) == "pci"
    return _text(found.get(_NAME)), _text(found.get(_PARENT_NAME)) if on_pci else ""


def _text(value: bytes | None) -> str:
    return os.fsdecode((value or b"").rstrip(b"\0"))
