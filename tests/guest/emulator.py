"""QEMU: which one is used, and the exact command line of a guest."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.guest import cache, host, unpacked
from tests.guest.image import LIBRARIES
from tests.guest.scenarios import SUITE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.guest.image import Image
    from tests.guest.topologies import Topology

#: The kernel of the guest panics in most boots under QEMU 7.2 and in none under 10.
OLDEST_VERSION: Final = 10
PROGRAM: Final = "qemu-system-x86_64"
PACKAGES: Final = ("qemu-system-x86", "qemu-system-data", "seabios", "ipxe-qemu")

#: A guest that is reset ends, also by a panic.
NO_REBOOT: Final = "-no-reboot"

#: What each part of the kernel's command line is for:
#: - root and console: no udev names, no initial RAM disk, a bounded wait for the disk;
#: - speed under emulation: no delay-loop calibration on each CPU (`lpj`), no mitigations,
#:   no watchdog, no self tests, no hardening, pages copied by plain instructions (`rep` is slow),
#:   a clock that is trusted (`command` adds its frequency);
#: - less for the kernel to count and to move: no pressure, no memory of its own by cgroup, no pages
#:   that follow their process, nothing written to a disk before a program asks for that;
#: - a panic ends QEMU (with its `-no-reboot`).
KERNEL_ARGUMENTS: Final = (
    "root=PARTUUID=6e756d61-01 rootwait=20 rootfstype=ext4 rw console=ttyS0 quiet loglevel=4 "
    "lpj=4000000 tsc=reliable no_timer_check mitigations=off nowatchdog nokaslr audit=0 "
    "cryptomgr.notests rcupdate.rcu_expedited=1 random.trust_cpu=on "
    "clearcpuid=rep_good init_on_alloc=0 randomize_kstack_offset=off hardened_usercopy=off lsm= "
    "psi=0 cgroup.memory=nokmem,nosocket numa_balancing=disable "
    "sysctl.vm.dirty_writeback_centisecs=0 sysctl.vm.dirty_background_ratio=90 "
    "sysctl.vm.dirty_ratio=95 "
    "panic=-1 net.ifnames=0 systemd.show_status=0 systemd.default_timeout_start_sec=300"
)

#: The thread that runs the CPUs serves a virtio device's queues, too. By default QEMU gives each
#: queue a descriptor that its main loop polls at every timer of the guest: 160 of them, a tenth
#: of the CPU time of a guest.
UNPOLLED: Final = "ioeventfd=off"


@dataclass(frozen=True, slots=True)
class Emulator:
    """A QEMU that can run the guests: what starts it, and what that needs in its environment."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Disks:
    """The files of one run: the job's tar, the blank the results go to, the serial log.

    `agent` is the disk with the agent's environment, None for a guest without one; `kubernetes` the
    disk with a real kubelet, whose guest reaches the host's loopback as 10.0.2.2.
    """

    job: Path
    out: Path
    serial: Path
    agent: Path | None = None
    kubernetes: Path | None = None


def provide(store: cache.Cache) -> Emulator:
    """Return the host's QEMU where it is new enough, else Debian's from an unpacked tree."""
    installed = shutil.which(PROGRAM, path=host.search_path())
    if installed and _version(installed) >= OLDEST_VERSION:
        return Emulator((installed,))
    key = cache.key_of(SUITE.encode(), *(package.encode() for package in PACKAGES))
    return _unpacked(store.entry("qemu", key, lambda where: unpacked.unpack(where, PACKAGES)))


def command(
    emulator: Emulator, image: Image, topology: Topology, disks: Disks, tsc_khz: int | None
) -> list[str]:
    """Return the command line of one guest; its virtio console is QEMU's standard output.

    `tsc_khz` is the frequency of the host's time stamp counter, which the guest reads; it has to
    find it out by itself when that is None.
    """
    arguments = [KERNEL_ARGUMENTS, *([topology.arguments] if topology.arguments else [])]
    if tsc_khz:
        arguments.append(f"tsc_early_khz={tsc_khz}")
    return [
        *emulator.command,
        *("-nodefaults", "-no-user-config", "-display", "none", NO_REBOOT),
        *("-machine", "q35,smm=off", "-accel", "tcg,thread=single,tb-size=512"),
        *_machine(topology),
        *("-kernel", str(image.kernel), "-append", " ".join(arguments)),
        *_disk("root", image.disk, "nvme", "snapshot=on,cache=unsafe"),
        *_virtio_disk("job", disks.job, "readonly=on"),
        *_virtio_disk("out", disks.out, "cache=unsafe"),
        *(_virtio_disk("agent", disks.agent, "readonly=on") if disks.agent else ()),
        *(_kubernetes(disks.kubernetes) if disks.kubernetes else ()),
        *("-chardev", f"file,id=serial,path={_quoted(disks.serial)}", "-serial", "chardev:serial"),
        *("-chardev", "file,id=console,path=/dev/stdout"),
        *(
            "-device",
            f"virtio-serial-pci,{UNPOLLED},max_ports=1",
            "-device",
            "virtconsole,chardev=console",
        ),
        *("-object", "rng-random,id=rng,filename=/dev/urandom"),
        *("-device", f"virtio-rng-pci,{UNPOLLED},rng=rng"),
        *(_local_devices() if topology.locality else ()),
    ]


def _version(program: str) -> int:
    found = re.search(r"version (\d+)\.", host.run([program, "--version"]))
    return int(found[1]) if found else 0


def _unpacked(tree: Path) -> Emulator:
    data = (tree / "usr/share/qemu", tree / "usr/share/seabios", tree / "usr/lib/ipxe/qemu")
    parts = unpacked.command(tree, PROGRAM)
    for directory in data:
        parts += ["-L", str(directory)]
    modules = ("QEMU_MODULE_DIR", str(tree / LIBRARIES / "qemu"))
    return Emulator(tuple(parts), (modules,))


def _machine(topology: Topology) -> list[str]:
    """Return CPUs, memory, NUMA nodes and their distances."""
    arguments = ["-cpu", topology.cpu, "-smp", topology.smp, "-m", f"{topology.memory_mib}M"]
    if topology.firmware:
        arguments += ["-bios", topology.firmware]
    for number, node in enumerate(topology.nodes):
        option = f"node,nodeid={number}"
        if node.cpus:
            option += f",cpus={node.cpus}"
        if node.memory_mib:
            backend = f"memory-backend-ram,id=m{number},size={node.memory_mib}M,reserve=off"
            arguments += ["-object", backend]
            option += f",memdev=m{number}"
        arguments += ["-numa", option]
    for source, target, distance in topology.distances:
        arguments += ["-numa", f"dist,src={source},dst={target},val={distance}"]
    return arguments


def _quoted(file: Path) -> str:
    """Return a file name for QEMU's option syntax, where a comma is written twice."""
    return str(file).replace(",", ",,")


def _disk(name: str, file: Path, device: str, options: str) -> list[str]:
    return [
        *("-drive", f"if=none,id={name},file={_quoted(file)},format=raw,{options}"),
        *("-device", f"{device},drive={name},serial={name}"),
    ]


def _virtio_disk(name: str, file: Path, options: str) -> list[str]:
    """Return a disk with one queue; by default each CPU of the guest has its own."""
    return _disk(name, file, f"virtio-blk-pci,{UNPOLLED},num-queues=1", options)


def _kubernetes(disk: Path) -> list[str]:
    """Return the disk with a real kubelet, and the network over which it has an API server."""
    return [
        *_virtio_disk("kubernetes", disk, "readonly=on"),
        *(
            "-netdev",
            "user,id=host,ipv6=off",
            "-device",
            f"virtio-net-pci,{UNPOLLED},netdev=host,romfile=",
        ),
    ]


def _local_devices() -> list[str]:
    """Return a PCI root of NUMA node 1 with a network card and an NVMe disk behind it."""
    return [
        *("-device", "pxb-pcie,id=pxb1,bus_nr=0x40,numa_node=1,bus=pcie.0"),
        *("-device", "pcie-root-port,id=port1,bus=pxb1,slot=1,chassis=11"),
        *("-device", "pcie-root-port,id=port2,bus=pxb1,slot=2,chassis=12"),
        *("-netdev", "hubport,id=net1,hubid=1", "-device", "vmxnet3,bus=port1,netdev=net1"),
        *("-drive", "if=none,id=near,file.driver=null-co,file.size=16M,format=raw"),
        *("-device", "nvme,bus=port2,drive=near,serial=near"),
    ]
