"""The provider of the host's own devices: when it reads, and what it says of what it read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import Mock

import pytest

from agent.config.agent import AgentConfig
from agent.config.devices import HostDeviceClass
from agent.config.model import Config
from agent.devices import host
from agent.devices.host import HostDevices, host_devices
from agent.devices.provider import DeviceError, DeviceProvider
from sysfs.devices import PCI_DIRECTORY
from sysfs.links import watch_links
from sysfs.uevents import watch_devices
from tests.agent.server.support import QUIET_SECONDS, in_loop
from tests.sysfs.pci import PciTree, network_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

VF: Final = "example.com/vf"
PORT: Final = "0000:3b:00.0"
FUNCTIONS: Final = tuple(f"0000:3b:02.{number}" for number in range(4))
CLASSES: Final = (HostDeviceClass(VF, virtual_functions_of="ens1f0"),)
#: Longer than any test runs.
NEVER: Final = 1e6


class Announcements:
    """A stream of changes that a test announces, or lets break."""

    def __init__(self) -> None:
        self.broken = False
        self.open_again = asyncio.Event()
        self._queue: asyncio.Queue[OSError | None] = asyncio.Queue()

    async def watch(self) -> AsyncIterator[None]:
        if self.broken:
            self.open_again.set()
        while True:
            error = await self._queue.get()
            if error is not None:
                self.broken = True
                raise error
            yield

    def announce(self, error: OSError | None = None) -> None:
        self._queue.put_nowait(error)


@pytest.fixture
def network(tmp_path: Path) -> PciTree:
    return network_host(tmp_path)


def provider_of(network: PciTree, period: float = NEVER) -> tuple[HostDevices, Announcements]:
    """Return a provider whose reading is triggered by announcements and by its period alone."""
    announced = Announcements()
    watches = {"devices": announced.watch}
    return HostDevices(CLASSES, network.root, watches=watches, period=period, settle=0), announced


@asynccontextmanager
async def serving(provider: HostDevices) -> AsyncIterator[asyncio.Queue[None]]:
    """Serve until the block ends, which gets a queue of the changes."""
    changes: asyncio.Queue[None] = asyncio.Queue()
    served = asyncio.create_task(provider.serve(lambda: changes.put_nowait(None)))
    try:
        yield changes
    finally:
        served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await served


def healthy(provider: HostDevices) -> list[str]:
    return [device.id for device in provider.offer().devices[VF] if device.healthy]


def test_devices_are_offered_from_the_start(network: PciTree) -> None:
    provider: DeviceProvider = provider_of(network)[0]
    assert [device.id for device in provider.offer().devices[VF]] == list(FUNCTIONS)
    assert provider.offer().preferring == frozenset()
    assert provider.conditions() == ()
    assert asyncio.run(provider.preferred(VF, frozenset(FUNCTIONS), frozenset(), 1)) == ()
    asyncio.run(provider.start_container(VF, FUNCTIONS[:1]))


@in_loop
async def test_an_announced_change_of_the_offer_is_passed_on(network: PciTree) -> None:
    provider, announced = provider_of(network)
    async with serving(provider) as changes:
        network.set_link(PORT, "ens1f0", "down")
        announced.announce()
        await changes.get()
        assert healthy(provider) == []
        assert "ens1f0 is down" in provider.conditions()[0]
        network.set_link(PORT, "ens1f0", "up")
        announced.announce()
        await changes.get()
        assert healthy(provider) == list(FUNCTIONS)
        assert provider.conditions() == ()
    assert changes.empty()


class Reads:
    """Counts what a provider reads of its host, as soon as it was read."""

    def __init__(self, provider: HostDevices, monkeypatch: pytest.MonkeyPatch) -> None:
        self._provider = provider
        self._read = provider._read
        self._done: asyncio.Queue[bool] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(provider, "_read", self)

    def __call__(self) -> object:
        announced = self._provider._changed.is_set()
        found = self._read()
        self._loop.call_soon_threadsafe(self._done.put_nowait, announced)
        return found

    async def next(self) -> bool:
        """Wait for a reading; return whether a change was still announced when it began."""
        return await self._done.get()


@in_loop
async def test_what_changes_nothing_of_the_offer_is_not_passed_on(
    network: PciTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, announced = provider_of(network)
    reads = Reads(provider, monkeypatch)
    async with serving(provider) as changes:
        await reads.next()
        network.add("0000:af:00.0", driver="ixgbe")  # of no class
        announced.announce()
        await reads.next()
        network.remove(FUNCTIONS[0])
        announced.announce()
        await changes.get()
        assert healthy(provider) == list(FUNCTIONS[1:])
    assert changes.empty()


@in_loop
async def test_a_change_while_devices_are_read_is_not_lost_with_the_one_before(
    network: PciTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, announced = provider_of(network)
    reads = Reads(provider, monkeypatch)
    async with serving(provider) as changes:
        assert not await reads.next()
        announced.announce()
        assert not await reads.next()
    assert changes.empty()


@in_loop
async def test_a_change_without_announcement_is_noticed_after_the_period(network: PciTree) -> None:
    for period in (NEVER, 0.01):
        provider, _ = provider_of(network, period)
        left = healthy(provider)
        network.remove(left[0])
        async with serving(provider) as changes:
            await changes.get()
            assert healthy(provider) == left[1:]
            if period != NEVER:
                network.remove(left[1])
                await changes.get()
                assert healthy(provider) == left[2:]


@in_loop
async def test_a_broken_stream_is_a_condition_until_it_is_open_again(
    network: PciTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "REOPEN_SECONDS", 0)
    provider, announced = provider_of(network)
    async with serving(provider) as changes:
        network.remove(FUNCTIONS[0])
        announced.announce(OSError(105, "No buffer space available"))
        await changes.get()
        assert healthy(provider) == list(FUNCTIONS[1:])
        await announced.open_again.wait()
        network.remove(FUNCTIONS[1])
        announced.announce()
        while healthy(provider) != list(FUNCTIONS[2:]):
            await changes.get()
        assert provider.conditions() == ()


async def _ending() -> AsyncIterator[None]:
    endings: tuple[None, ...] = ()
    for each in endings:
        yield each


async def _forbidden() -> AsyncIterator[None]:
    async for each in _ending():
        yield each
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("watch", "reason"),
    [(_ending, "the stream ended"), (_forbidden, "Operation not permitted")],
)
@in_loop
async def test_a_stream_that_stays_broken_says_how_changes_are_noticed(
    network: PciTree, watch: Callable[[], AsyncIterator[None]], reason: str
) -> None:
    provider = HostDevices(CLASSES, network.root, watches={"links": watch}, settle=0)
    async with serving(provider) as changes:
        await changes.get()
        (line,) = provider.conditions()
        assert "changes of the host's links are noticed every" in line
        assert line.endswith(reason)


def test_this_host_is_watched_and_no_other_root(tmp_path: Path) -> None:
    nvme = (HostDeviceClass(VF, pci_class="0108"),)
    assert dict(HostDevices(nvme, Path("/"))._watches) == {
        "devices": watch_devices,
        "links": watch_links,
    }
    assert dict(HostDevices(nvme, tmp_path)._watches) == {}


def test_a_bus_that_cannot_be_read_is_a_condition(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / PCI_DIRECTORY).write_text("no directory")
    provider = HostDevices(CLASSES, tmp_path)
    assert provider.offer().devices == {VF: ()}
    assert any(
        line.startswith(f"{tmp_path}/{PCI_DIRECTORY}: it cannot be read")
        for line in provider.conditions()
    )


def test_an_allocation_gets_what_the_host_shows_at_that_moment(network: PciTree) -> None:
    provider, _ = provider_of(network)
    network.link(f"{network.place(FUNCTIONS[1])}/iommu_group", "sys/kernel/iommu_groups/99")
    delivery = asyncio.run(provider.allocate(VF, (FUNCTIONS[1],)))
    assert delivery.environment["PCIDEVICE_EXAMPLE_COM_VF"] == FUNCTIONS[1]
    assert [node.host_path for node in delivery.device_nodes] == ["/dev/vfio/vfio", "/dev/vfio/99"]


@in_loop
async def test_a_device_that_is_gone_is_not_delivered_and_no_longer_offered_then(
    network: PciTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, _ = provider_of(network)
    reads = Reads(provider, monkeypatch)
    async with serving(provider) as changes:
        await reads.next()
        network.remove(FUNCTIONS[0])
        with pytest.raises(DeviceError, match=f"{VF}: {FUNCTIONS[0]} is no longer a device"):
            await provider.allocate(VF, (FUNCTIONS[1], FUNCTIONS[0]))
        await changes.get()
        assert healthy(provider) == list(FUNCTIONS[1:])
    assert changes.empty()


def test_the_device_that_a_pod_got_last_comes_before_others_of_its_group(tmp_path: Path) -> None:
    tree = PciTree(tmp_path)
    first, second = "0000:86:00.0", "0000:86:00.1"
    for address in (first, second):
        tree.add(address, driver="vfio-pci", group=9)
    provider = HostDevices((HostDeviceClass(VF, pci_class="02"),), tmp_path, watches={})
    for given, other in ((second, first), (first, second), (second, first)):
        tree.bind(given, "vfio-pci")
        tree.unbind(other)
        asyncio.run(provider.allocate(VF, (given,)))
        tree.bind(other, "vfio-pci")
        with pytest.raises(DeviceError, match=f"{other} is not healthy: only one process can"):
            asyncio.run(provider.allocate(VF, (other,)))


def test_a_device_that_is_not_healthy_or_of_another_resource_is_not_delivered(
    network: PciTree,
) -> None:
    classes = (*CLASSES, HostDeviceClass("example.com/nic", interface="ens1f0"))
    provider = HostDevices(classes, network.root, watches={})
    with pytest.raises(DeviceError, match=f"{VF}: {PORT} is no longer a device"):
        asyncio.run(provider.allocate(VF, (PORT,)))
    network.set_link(PORT, "ens1f0", "down")
    with pytest.raises(DeviceError, match="not healthy: the link of ens1f0 is down") as caught:
        asyncio.run(provider.allocate(VF, (FUNCTIONS[0],)))
    assert caught.value.remedy


def test_an_interface_that_moved_to_a_container_stays_offered(network: PciTree) -> None:
    classes = (HostDeviceClass(VF, interface="ens1f0"),)
    provider = HostDevices(classes, network.root, watches={})
    network.move_away(PORT, "ens1f0")
    assert asyncio.run(provider.allocate(VF, (PORT,))).pci_addresses == (PORT,)


def test_a_device_whose_interface_moved_before_a_restart_stays_offered(network: PciTree) -> None:
    allocated = {VF: frozenset({PORT}), "example.com/other": frozenset({"0000:3b:00.2"})}
    other = (HostDeviceClass(VF, interface="ens2*"),)
    assert healthy(HostDevices(other, network.root, allocated=allocated, watches={})) == []
    network.add("0000:3b:00.2", node=1, driver="ice")
    network.move_away(PORT, "ens1f0")
    classes = (HostDeviceClass(VF, interface="ens1f*", driver="ice"),)
    provider = HostDevices(classes, network.root, allocated=allocated, watches={})
    assert healthy(provider) == [PORT]


def test_a_provider_is_made_of_classes_and_none_without_them(network: PciTree) -> None:
    agent = AgentConfig(host_devices=CLASSES, sysfs_root=network.root)
    provider = host_devices(Config(agent=agent), {})
    assert provider is not None
    assert healthy(provider) == list(FUNCTIONS)
    assert host_devices(Config(), {}) is None


@pytest.mark.parametrize(
    ("criteria", "asks"),
    [
        ({"pci_class": "0108"}, False),
        ({"pci_class": "02"}, True),
        ({"interface": "ens1f0"}, True),
        ({"driver": "vfio-pci"}, True),
    ],
)
def test_netlink_is_asked_on_this_host_where_a_class_can_have_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, criteria: dict[str, str], *, asks: bool
) -> None:
    read = Mock(return_value=())
    monkeypatch.setattr(host, "read_live_links", read)
    classes = (HostDeviceClass(VF, **criteria),)
    HostDevices(classes, tmp_path)
    assert not read.called
    HostDevices(classes, Path("/"))
    assert read.called == asks


@pytest.mark.parametrize("turns", range(4))
def test_a_mistake_in_a_watch_amid_a_change_ends_the_provider(network: PciTree, turns: int) -> None:
    """What runs the provider says so and starts it again."""

    async def changes() -> AsyncIterator[None]:
        while not getattr(provider._changed, "_waiters", ()):  # noqa: ASYNC110  # no event says it
            await asyncio.sleep(0)
        yield
        for _ in range(turns):
            await asyncio.sleep(0)
        raise RuntimeError("a mistake")

    provider = HostDevices(CLASSES, network.root, watches={"devices": changes}, period=NEVER)

    async def serve() -> None:
        async with asyncio.timeout(QUIET_SECONDS):
            await provider.serve(lambda: None)

    with pytest.raises(ExceptionGroup, match="TaskGroup"):
        asyncio.run(serve())
