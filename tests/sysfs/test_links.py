from __future__ import annotations

from typing import TYPE_CHECKING

from sysfs import links
from sysfs.links import read_links
from tests.sysfs.test_netlink import attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def link(name: str, parent: str = "", bus: str = "") -> bytes:
    """Return RTM_NEWLINK's payload: struct ifinfomsg, then attributes, one of no concern."""
    data = bytes(16) + attribute(3, f"{name}\0".encode()) + attribute(4, b"\xdc\x05\0\0")
    if parent:
        data += attribute(56, f"{parent}\0".encode()) + attribute(57, f"{bus}\0".encode())
    return data


def test_links_come_with_the_address_of_their_pci_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (link("lo"), link("eth0", "0000:41:00.0", "pci"), link("eth1", "virtio2", "virtio"))

    def dump(kind: int, body: bytes) -> Iterator[bytes]:
        assert (kind, body) == (18, bytes(16))
        yield from answers

    monkeypatch.setattr(links, "dump", dump)
    assert read_links() == (("lo", ""), ("eth0", "0000:41:00.0"), ("eth1", ""))


def test_a_sandbox_without_netlink_leaves_it_to_sysfs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _body: bytes) -> Iterator[bytes]:
        raise PermissionError(1, "no")

    monkeypatch.setattr(links, "dump", refuse)
    assert read_links() == ()


def test_this_hosts_own_links_include_the_loopback() -> None:
    assert ("lo", "") in read_links()
