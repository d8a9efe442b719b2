"""What device plugins send: bytes of Register, ListAndWatch and Allocate, to the real handlers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from structlog.testing import capture_logs

from agent.devices.cdi import checked
from agent.devices.plugin_limits import LONGEST_ID, MOST_DEVICES, NUMA_NODES
from agent.devices.plugins import DevicePlugins
from agent.devices.provider import DeviceError
from agent.pods.model import extended_resource_fault
from agent.rpc import LONGEST_SOCKET, CallError
from tests.agent.devices.plugins.support import NONE_KNOWN, Tally
from tests.agent.server.support import FakeClock
from tests.fakes.device_plugin import encoded
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from random import Random

    from agent.managers.allocation import Delivery
    from tests.fuzz.target import Check

_DIRECTORY: Final = Path("/var/lib/kubelet/device-plugins")
_GPU: Final = "example.com/gpu"
_REGISTRATION: Final = encoded(
    "RegisterRequest", version="v1beta1", resource_name=_GPU, endpoint="gpu.sock"
)
_TEXTS: Final = (
    *("", "a", "..", "../x", "/x", "kubelet.sock", "gpu.sock", "a" * 75, "a" * 300, "\u00e9" * 40),
    *("v1", "v1beta1", "cpu", "kubernetes.io/x", _GPU, "example.com/" + "n" * 64, "a\nb", "a\0b"),
    *("\x1b[2J", "\u202e", "Healthy", "Unhealthy", "rw", "rwx", "/dev/x", "/dev/../x", "A=B"),
)
_NUMBERS: Final = (-1, 0, 1, 7, 63, 1023, 1024, 65536, 2**31, 2**63 - 1, -(2**63))
#: Rounds of the loop after which a list that arrived is used.
_ROUNDS: Final = 12


class _Client:
    """A plugin without a socket: answers calls with `answer`, sends `listed` as its one list."""

    def __init__(self, listed: bytes, answer: bytes) -> None:
        self._listed = listed
        self._answer = answer

    async def call(self, method: str, request: Any, response: Any, seconds: float) -> bytes:  # noqa: ANN401, ARG002  # as a client
        return self._answer if method == "Allocate" else b""

    async def stream(self, method: str, request: Any, response: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401, ARG002  # as a client
        yield self._listed
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close nothing."""


class _Plugins:
    """A provider, and the sockets that it dialled."""

    def __init__(self, listed: bytes = b"", answer: bytes = b"") -> None:
        self.dialled: list[Path] = []
        self._client = _Client(listed, answer)
        self.provider = DevicePlugins(
            _DIRECTORY, FakeClock(), Tally(), known=NONE_KNOWN, dial=self._dial
        )

    def _dial(self, socket: Path) -> _Client:
        self.dialled.append(socket)
        return self._client

    async def registered(self, raw: bytes) -> bool:
        """Register and wait until the list is used; return whether the plugin was accepted."""
        try:
            await self.provider.register(raw)
        except CallError as error:
            demand(error.message.isprintable(), f"no line: {error.message!r}")
            return False
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        return True

    async def end(self) -> None:
        """End what still runs."""
        await self.provider._disconnect_all()


@contextmanager
def _in_loop(check: Callable[[bytes], Any]) -> Iterator[Check]:
    """Give an asynchronous check a loop of its own while inputs are tried."""
    with asyncio.Runner() as runner, capture_logs() as logged:

        def judge(data: bytes) -> bool:
            logged.clear()
            return bool(runner.run(check(data)))

        yield judge


async def _check_registration(data: bytes) -> bool:
    plugins = _Plugins()
    accepted = await plugins.registered(data)
    offered = list(plugins.provider.offer().devices)
    for socket in plugins.dialled:
        demand(socket.parent == _DIRECTORY, f"{socket} is elsewhere")
        demand(socket.name not in ("", ".", "..", "kubelet.sock"), f"{socket} is not a plugin's")
        demand(len(str(socket).encode()) <= LONGEST_SOCKET, f"{socket} is too long")
    demand(len(offered) == len(plugins.dialled) == accepted, "accepted and not offered")
    demand(not any(map(extended_resource_fault, offered)), f"{offered} is offered")
    await plugins.end()
    return accepted


async def _check_list(data: bytes) -> bool:
    plugins = _Plugins(listed=data)
    demand(await plugins.registered(_REGISTRATION), "the plugin is not registered")
    devices = plugins.provider.offer().devices[_GPU]
    conditions = plugins.provider.conditions()
    for line in conditions:
        demand(line.isprintable(), f"no line: {line!r}")
    demand(len(devices) <= MOST_DEVICES, f"{len(devices)} devices")
    demand(len({each.id for each in devices}) == len(devices), "an id is offered twice")
    for each in devices:
        demand(each.id and each.id.isprintable(), f"{each.id!r} is an id")
        demand(len(each.id.encode()) <= LONGEST_ID, f"{each.id!r} is too long")
        demand(each.nodes.bits < 1 << NUMA_NODES, f"{each.id!r} has nodes {each.nodes}")
    demand(not conditions or not any(each.healthy for each in devices), "healthy though rejected")
    await plugins.end()
    return not conditions


async def _check_allocation(data: bytes) -> bool:
    plugins = _Plugins(answer=data)
    demand(await plugins.registered(_REGISTRATION), "the plugin is not registered")
    try:
        delivery = checked(await plugins.provider.allocate(_GPU, ("a",)), "plugin", _GPU)
    except DeviceError as error:
        demand(error.message.isprintable(), f"no line: {error.message!r}")
        return False
    finally:
        await plugins.end()
    for path in _paths(delivery):
        demand(path.startswith("/") and path.isprintable(), f"{path!r} is a path")
        demand(".." not in path.split("/"), f"{path!r} leads elsewhere")
    for name, value in delivery.environment.items():
        demand(name and "=" not in name and "\0" not in name + value, f"{name!r} is a variable")
    for node in delivery.device_nodes:
        demand(set(node.permissions) <= set("rwm"), f"{node.permissions!r} are permissions")
    return True


def _paths(delivery: Delivery) -> Iterator[str]:
    for mount in delivery.mounts:
        yield from (mount.container_path, mount.host_path)
    for node in delivery.device_nodes:
        yield from (node.container_path, node.host_path)


def _damaged(random: Random, raw: bytes) -> bytes:
    return damaged_bytes(random, raw) if random.randrange(3) == 0 else raw


def _text(random: Random, usual: str) -> str:
    return random.choice(_TEXTS) if random.randrange(6) == 0 else usual


def make_registration(random: Random) -> bytes:
    """Draw a RegisterRequest."""
    return _damaged(
        random,
        encoded(
            "RegisterRequest",
            version=_text(random, "v1beta1"),
            resource_name=_text(random, _GPU),
            endpoint=_text(random, "gpu.sock"),
        ),
    )


def make_list(random: Random) -> bytes:
    """Draw a ListAndWatchResponse."""
    devices = [
        {
            "ID": _text(random, f"gpu-{number}"),
            "health": _text(random, "Healthy"),
            "topology": {
                "nodes": [{"ID": random.choice(_NUMBERS)} for _ in range(random.randrange(3))]
            },
        }
        for number in range(random.randrange(5))
    ]
    return _damaged(random, encoded("ListAndWatchResponse", devices=devices))


def make_allocation(random: Random) -> bytes:
    """Draw an AllocateResponse."""

    def path() -> dict[str, str]:
        names = ("container_path", "host_path")
        return {name: _text(random, "/dev/gpu") for name in names}

    containers = [
        {
            "envs": {_text(random, "NAME"): _text(random, "value")},
            "mounts": [path() for _ in range(random.randrange(3))],
            "devices": [{**path(), "permissions": _text(random, "rwm")}],
            "annotations": {_text(random, "a"): _text(random, "b")},
            "cdi_devices": [{"name": _text(random, "example.com/gpu=0")}],
        }
        for _ in range(random.choice((1, 1, 1, 0, 2)))
    ]
    return _damaged(random, encoded("AllocateResponse", container_responses=containers))


REGISTRATIONS: Final = Target(
    "plugin-registration", make_registration, lambda: _in_loop(_check_registration), weight=2
)
DEVICE_LISTS: Final = Target("plugin-list", make_list, lambda: _in_loop(_check_list), weight=2)
ALLOCATIONS: Final = Target(
    "plugin-allocation", make_allocation, lambda: _in_loop(_check_allocation)
)
