from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyroute2
import pytest
from pyroute2.netlink.exceptions import NetlinkError

from sysfs.net import read_links

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Link:
    def __init__(self, **attributes: str) -> None:
        self._attributes = attributes

    def get_attr(self, name: str) -> str | None:
        return self._attributes.get(name)


class _Netlink:
    """What `IPRoute` gives: links, or a rejection."""

    links: tuple[_Link, ...] = ()
    rejection: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def get_links(self) -> Iterator[_Link]:
        if self.rejection is not None:
            raise self.rejection
        yield from self.links


def test_links_come_with_the_address_of_their_pci_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Netlink(_Netlink):
        links = (
            _Link(IFLA_IFNAME="lo"),
            _Link(
                IFLA_IFNAME="eth0",
                IFLA_PARENT_DEV_NAME="0000:41:00.0",
                IFLA_PARENT_DEV_BUS_NAME="pci",
            ),
            _Link(
                IFLA_IFNAME="eth1",
                IFLA_PARENT_DEV_NAME="virtio2",
                IFLA_PARENT_DEV_BUS_NAME="virtio",
            ),
        )

    monkeypatch.setattr(pyroute2, "IPRoute", Netlink)
    assert read_links() == (("lo", ""), ("eth0", "0000:41:00.0"), ("eth1", ""))


@pytest.mark.parametrize("rejection", [PermissionError(1, "no"), NetlinkError(1, "no")])
def test_a_sandbox_without_netlink_leaves_it_to_sysfs(
    monkeypatch: pytest.MonkeyPatch, rejection: Exception
) -> None:
    monkeypatch.setattr(_Netlink, "rejection", rejection)
    monkeypatch.setattr(pyroute2, "IPRoute", _Netlink)
    assert read_links() == ()


def test_this_hosts_own_links_include_the_loopback() -> None:
    assert ("lo", "") in read_links()
