from __future__ import annotations

import socket
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING

import pytest

from systemd import notify
from systemd.notify import Notifier, NotifyError, watchdog_interval
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


def test_states_are_sent_as_systemd_reads_them(listener: socket.socket) -> None:
    without = Notifier({})
    without.ready()
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    assert (notifier.active, without.active) == (True, False)
    notifier.ready("up with\n2 pods")
    notifier.watchdog()
    notifier.status("3 pods")
    notifier.stopping()
    received = [listener.recv(4096).decode() for _ in range(4)]
    assert received == [
        "READY=1\nSTATUS=up with 2 pods",
        "WATCHDOG=1",
        "STATUS=3 pods",
        "STOPPING=1",
    ]


def test_a_manager_that_does_not_read_does_not_block_the_agent(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PATIENCE_SECONDS", 0.01)
    notifier = Notifier({"NOTIFY_SOCKET": listener.getsockname()})
    with pytest.raises(NotifyError, match="timed out"):
        deque(map(notifier.ready, repeat("2 pods")), maxlen=0)
    notifier.watchdog()
    notifier.status("3 pods")
    assert listener.recv(4096) == b"READY=1\nSTATUS=2 pods"


def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # the kernel chooses an abstract name
        receiver.settimeout(5)
        name = receiver.getsockname()
        Notifier({"NOTIFY_SOCKET": "@" + name[1:].decode()}).ready()
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("/nowhere/gone", "cannot notify systemd"),
        ("vsock:2:1234", "neither a path nor an abstract socket"),
    ],
)
def test_a_socket_that_is_gone_or_none_is_an_error(address: str, says: str) -> None:
    with pytest.raises(NotifyError, match=says):
        Notifier({"NOTIFY_SOCKET": address}).ready()


@pytest.mark.parametrize("text", ["0", "-1", "soon"])
def test_a_senseless_watchdog_is_an_error(text: str) -> None:
    with pytest.raises(SystemdError, match="not a positive number"):
        watchdog_interval({"WATCHDOG_USEC": text})


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "5"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "6"}, None),
    ],
)
def test_the_watchdog_is_served_twice_as_often_as_needed(
    environment: dict[str, str], interval: float | None
) -> None:
    assert watchdog_interval(environment, pid=5) == interval
