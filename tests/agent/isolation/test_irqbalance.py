"""irqbalance learns over its socket which CPUs interrupts keep off."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

import pytest

from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals
from agent.isolation.places import BANNED, Form, HostPlaces, cpus_of, text_of
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.agent.isolation.hosts import ALWAYS, BOOT, Host, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOCKET: Final = "run/irqbalance/irqbalance815.sock"


class Irqbalance:
    """irqbalance as of 1.9: one message for each connection, from root alone."""

    def __init__(self, path: Path, banned: str) -> None:
        self.banned = Mask.parse(banned)
        self.sent: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listening.bind(str(path))
        self._listening.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                data, ancillary, *_ = connection.recvmsg(500, socket.CMSG_SPACE(12))
                message = data.decode().rstrip("\0")
                if not message:
                    return
                ((_, kind, credentials),) = ancillary
                assert kind == socket.SCM_CREDENTIALS
                assert struct.unpack("iII", credentials)[1] == os.geteuid()
                if message == "setup":
                    answer = f"SLEEP 10 IRQ 24 LOAD 3 DIFF 1 CLASS 4 BANNED {self._mask()}"
                    connection.send(answer.encode())
                else:
                    self.sent.append(message)
                    cpus = message.removeprefix("settings cpus ")
                    self.banned = Mask() if cpus == "NULL" else Mask.parse(cpus)

    def _mask(self) -> str:
        return f"00000000,{text_of(Form.MASK, self.banned):>08}"

    def stop(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
        self._thread.join()
        self._listening.close()
        path.unlink()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    (host.root / SOCKET).parent.mkdir(parents=True)
    return host


@pytest.fixture
def irqbalance(host: Host) -> Iterator[Irqbalance]:
    running = Irqbalance(host.root / SOCKET, "1")
    yield running
    running.stop(host.root / SOCKET)


def test_exclusive_cpus_join_those_that_it_avoids_also_after_its_restart(
    host: Host, irqbalance: Irqbalance
) -> None:
    isolation, _ = host.start()
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert irqbalance.sent == ["settings cpus 1-3"]
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert irqbalance.sent == ["settings cpus 1-3"]
    assert host.saved()[BANNED] == "1"
    irqbalance.banned = Mask.parse("1")  # it was restarted
    isolation.apply([quiet("2-3")], (), thorough=True)
    isolation.apply([], (), thorough=True)
    assert irqbalance.sent == [*["settings cpus 1-3"] * 2, "settings cpus 1"]
    assert BANNED not in host.saved()


def test_one_that_does_not_answer_is_a_condition_and_is_asked_once_a_comparison(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.isolation.places._ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(host.root / SOCKET))
        silent.listen(8)
        isolation, places = host.start()
        isolation.apply([quiet("2-3")], (), thorough=True)
        (condition,) = isolation.report.conditions.values()
        assert condition.endswith("irqbalance does not answer on its socket")
        assert places.silent
        assert host.shows("proc/irq/5/smp_affinity_list") == "0-1,4-7\n"


def test_one_without_a_socket_is_a_condition(host: Host) -> None:
    kernel = EmulatedKernel(Mask.parse("0-7"), Mask.of(0))
    kernel.mkdir("system.slice")
    kernel.mkdir("system.slice/irqbalance.service")
    places = HostPlaces(host.root, kernel)
    isolation = HostIsolation(ALWAYS, places, Originals(host.state, BOOT), units=False)
    isolation.apply([quiet("2-3")], (), thorough=True)
    assert "has no socket" in isolation.report.conditions["isolation irqbalance"]


@pytest.mark.parametrize(
    ("text", "cpus"), [("ff\n", "0-7"), ("1,00000000\n", "32"), ("00000003,00000001", "0,32-33")]
)
def test_a_mask_is_read_and_written_as_the_kernel_does(text: str, cpus: str) -> None:
    assert cpus_of(Form.MASK, text) == Mask.parse(cpus)
    assert text_of(Form.MASK, Mask.parse(cpus)) == text.strip().lstrip("0")
