from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from agent.server.service_manager import ServiceManager
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.setblocking(False)  # noqa: FBT003  # the socket module's signature
        yield receiving


def everything(notified: socket.socket) -> list[str]:
    texts: list[str] = []
    while True:
        try:
            texts.append(notified.recv(4096).decode())
        except BlockingIOError:
            return texts


def test_a_status_is_sent_when_it_changed(notified: socket.socket, tmp_path: Path) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    manager.ready("3 pods")
    for text in ("3 pods", "4 pods", "4 pods"):
        manager.status(text)
    assert everything(notified)[1:] == ["STATUS=4 pods"]


def test_the_watchdog_is_pinged_twice_in_its_time() -> None:
    assert ServiceManager.of({"WATCHDOG_USEC": "30000000"}).ping_seconds == 15
    assert ServiceManager.of({}).ping_seconds is None


def test_a_service_manager_that_went_away_changes_nothing(tmp_path: Path) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    manager.ready("")
    manager.alive()
    manager.stopping()


def test_nonsense_in_the_environment_is_an_error() -> None:
    with pytest.raises(SystemdError):
        ServiceManager.of({"WATCHDOG_USEC": "soon"})
