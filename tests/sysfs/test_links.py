from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Self

import pyroute2
import pytest
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from sysfs import links
from sysfs.files import SysfsTree
from sysfs.links import (
    LINK_GROUP,
    NET_DIRECTORY,
    Link,
    open_link_socket,
    read_links,
    read_live_links,
    watch_links,
)
from tests.sysfs.trees import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("files", "state", "up", "warns"),
    [
        *(({"operstate": state, "flags": "0x1003"}, state, up, "") for state, up in (
            ("up", True),
            ("unknown", True),
            ("down", False),
            ("dormant", False),
            ("lowerlayerdown", False),
            ("notpresent", False),
            ("testing", False),
        )),
        ({"operstate": "unknown", "flags": "0x1002"}, "unknown", False, ""),
        ({"carrier": "1"}, "up", True, ""),
        ({"carrier": "0"}, "down", False, ""),
        # The kernel rejects to read it of an interface that is administratively down.
        ({"operstate": "down", "carrier": "rejected"}, "down", False, ""),
        ({}, "unknown", True, ""),
        *(({"operstate": odd}, "unknown", True, "operstate: found") for odd in
          ("UP", "up down", "\0", "u" * 5000, "naïve")),
        *(({"flags": odd}, "unknown", True, "flags: found") for odd in
          ("3", "0x", "0x1g", "0x" + "0" * 99)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_the_state_of_an_interface_is_read_and_what_is_odd_is_a_warning(
    tmp_path: Path, files: dict[str, str], state: str, *, up: bool, warns: str
) -> None:
    texts = {f"{NET_DIRECTORY}/eth0/{name}": f"{text}\n" for name, text in files.items()}
    tree = SysfsTree(lay_out(tmp_path, texts))
    (link,) = read_links(tree, ["eth0"]).values()
    assert (link.name, link.state, link.is_up) == ("eth0", state, up)
    assert [warns in warning for warning in tree.warnings] == [True] * bool(warns)


def test_netlink_comes_before_sysfs(tmp_path: Path) -> None:
    lay_out(tmp_path, {f"{NET_DIRECTORY}/{name}/operstate": "down" for name in ("eth0", "eth1")})
    found = read_links(SysfsTree(tmp_path), ["eth0", "eth1"], [Link("eth0", state="up")])
    assert {name: link.state for name, link in found.items()} == {"eth0": "up", "eth1": "down"}


def _message(**attributes: object) -> ifinfmsg:
    """Return a message as the kernel sends it, encoded and decoded by pyroute2."""
    sent = ifinfmsg()
    sent["header"]["type"] = 16  # RTM_NEWLINK
    sent["flags"] = attributes.pop("flags", 1)
    sent["attrs"] = [(f"IFLA_{name}", value) for name, value in attributes.items()]
    sent.encode()
    received = ifinfmsg(sent.data)
    received.decode()
    return received


def _functions(*states: int) -> dict[str, Any]:
    info = [
        ("IFLA_VF_INFO", {"attrs": [("IFLA_VF_LINK_STATE", {"vf": vf, "link_state": state})]})
        for vf, state in enumerate(states)
    ]
    return {"attrs": info}


class _Netlink:
    """What `IPRoute` gives: links, or a rejection."""

    links: tuple[ifinfmsg, ...] = ()
    rejection: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def get_links(self, ext_mask: int) -> Iterator[ifinfmsg]:
        assert ext_mask == 1  # without it the kernel leaves virtual functions out
        if self.rejection is not None:
            raise self.rejection
        yield from self.links


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch) -> type[_Netlink]:
    """Put a fake in the place of pyroute2's netlink."""

    class Netlink(_Netlink):
        pass

    monkeypatch.setattr(pyroute2, "IPRoute", Netlink)
    return Netlink


def test_links_come_with_the_address_of_their_pci_parent(netlink: type[_Netlink]) -> None:
    nic = {"PARENT_DEV_NAME": "0000:41:00.0", "PARENT_DEV_BUS_NAME": "pci"}
    virtio = {"PARENT_DEV_NAME": "virtio2", "PARENT_DEV_BUS_NAME": "virtio"}
    netlink.links = (
        _message(IFNAME="lo", OPERSTATE="UNKNOWN"),
        _message(IFNAME="eth0", OPERSTATE="UP", **nic),
        _message(flags=0, IFNAME="eth1", OPERSTATE="DOWN", **virtio),
    )
    assert read_live_links() == (
        Link("lo", "", "unknown"),
        Link("eth0", "0000:41:00.0", "up"),
        Link("eth1", "", "down", enabled=False),
    )


def test_virtual_functions_whose_link_is_disabled_are_known_by_their_number(
    netlink: type[_Netlink],
) -> None:
    auto, enabled, disabled = range(3)
    functions = _functions(auto, disabled, enabled, disabled)
    netlink.links = (_message(IFNAME="eth0", OPERSTATE="UP", VFINFO_LIST=functions),)
    (link,) = read_live_links()
    assert link.disabled_functions == {1, 3}


@pytest.mark.parametrize("rejection", [PermissionError(1, "no"), NetlinkError(1, "no")])
def test_a_sandbox_without_netlink_leaves_it_to_sysfs(
    netlink: type[_Netlink], rejection: Exception
) -> None:
    netlink.rejection = rejection
    assert read_live_links() == ()


def test_links_are_read_whether_or_not_an_event_loop_runs_in_this_thread() -> None:
    async def read() -> set[str]:
        return {link.name for link in read_live_links()}

    assert asyncio.run(read()) == {link.name for link in read_live_links()}


class _Socket:
    """A socket that gets two messages, then loses some."""

    def __init__(self) -> None:
        self._left = 2
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def gettimeout(self) -> float:
        return 0.0

    def recv(self, size: int) -> bytes:
        if not self._left:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        self._left -= 1
        return b"\0" * size


def test_every_message_is_a_change_until_some_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _Socket()
    changes: list[None] = []
    monkeypatch.setattr(links, "open_link_socket", lambda: fake)

    async def watch() -> None:
        async for change in watch_links():
            changes.append(change)  # noqa: PERF401  # the last read raises

    with pytest.raises(OSError, match="No buffer space"):
        asyncio.run(watch())
    assert (len(changes), fake.closed) == (2, True)


def test_the_real_socket_gets_changes_of_links_and_never_blocks() -> None:
    with open_link_socket() as netlink:
        _, groups = netlink.getsockname()
        assert groups == LINK_GROUP
        assert netlink.proto == socket.NETLINK_ROUTE
        assert netlink.gettimeout() == 0.0
