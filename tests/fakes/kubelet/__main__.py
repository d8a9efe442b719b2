"""`python3 -m tests.fakes.kubelet CONTROL`: the fake kubelet as a program, on the real host."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

from cgroupfs.tree import KernelTree
from sysfs.mask import Mask
from systemd.bus import SystemBus
from tests.fakes.certificate import write_certificate
from tests.fakes.kubelet.cgroups import PodCgroups
from tests.fakes.kubelet.cri import SECONDS, CriClient
from tests.fakes.kubelet.endpoint import PodsEndpoint
from tests.fakes.kubelet.kubelet import FakeKubelet, Options
from tests.fakes.kubelet.worker import Habits

#: Seconds that systemd has for an answer; a kubelet waits as long.
PATIENCE: Final = 120.0
CGROUPS: Final = Path("/sys/fs/cgroup")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python3 -m tests.fakes.kubelet", description=__doc__)
    made.add_argument("control", type=Path, help="where pods/*.json are; state.json goes there")
    made.add_argument("--directory", type=Path, default=Path("/var/lib/kubelet"))
    made.add_argument("--runtime", type=Path, default=Path("/run/containerd/containerd.sock"))
    made.add_argument("--blind", type=float, default=0.0, help="seconds without pods after a start")
    made.add_argument("--retry", type=float, default=10.0, help="seconds after an error")
    made.add_argument("--linger", type=float, default=5.0, help="seconds before the removal")
    made.add_argument("--poll", type=float, default=0.2, help="seconds between two readings")
    made.add_argument("--look", type=float, default=1.0, help="seconds between two CRI lists")
    made.add_argument("--at-once", type=int, default=1000, help="CRI calls at a time")
    made.add_argument("--request", type=float, default=SECONDS, help="seconds for a CRI call")
    made.add_argument("--no-pods-api", action="store_true")
    made.add_argument("--token", help="serve /pods to bearers of this token")
    made.add_argument("--port", type=int, default=10250)
    return made


async def serve(options: argparse.Namespace, cpus: Mask) -> None:
    """Serve until SIGTERM, on a host with these CPUs."""
    cgroups = PodCgroups(SystemBus(timeout=PATIENCE), KernelTree(CGROUPS), cpus)
    runtime = CriClient(options.runtime, options.request, options.at_once)
    habits = Habits(retry=options.retry, look=options.look, linger=options.linger)
    behaviour = Options(options.blind, options.poll, not options.no_pods_api, habits)
    kubelet = FakeKubelet(options.directory, options.control, runtime, cgroups, behaviour)
    if options.token:
        certificate = write_certificate(options.control / "kubelet.pem")
        kubelet.endpoint = PodsEndpoint(kubelet.pods, certificate, options.token, options.port)
    running = asyncio.ensure_future(kubelet.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await runtime.close()


if __name__ == "__main__":
    online = Path("/sys/devices/system/cpu/online").read_text()
    asyncio.run(serve(parser().parse_args(), Mask.parse(online.strip())))
