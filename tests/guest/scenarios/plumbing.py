"""Everything the other scenarios stand on, without the agent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest.inside import containerd, kernel, oci, prometheus, workloads
from tests.guest.inside.commands import run as command
from tests.guest.inside.cri import Runtime

if TYPE_CHECKING:
    from tests.guest.inside.checks import Checks
    from tests.guest.inside.guest import Guest

NODES: Final = Path("/sys/devices/system/node")
SLICE: Final = "guest-pod1.slice"


def run(guest: Guest) -> None:
    """Check the guest, then each way to start a container, then the metrics' readers."""
    _machine(guest.checks)
    command(
        "systemctl", "set-property", "--runtime", SLICE, "AllowedCPUs=8-11", "AllowedMemoryNodes=1"
    )
    _systemd_run(guest.checks)
    _podman(guest)
    _containerd(guest)
    _prometheus(guest)


def _machine(checks: Checks) -> None:
    checks.equal("nodes", kernel.ids((NODES / "online").read_text()), frozenset({0, 1}))
    checks.equal("CPUs of node 1", (NODES / "node1/cpulist").read_text().strip(), "8-15")
    checks.equal("distances of node 0", (NODES / "node0/distance").read_text().strip(), "10 21")
    local = [
        path
        for path in Path("/sys/bus/pci/devices").glob("*/numa_node")
        if path.read_text().strip() == "1"
    ]
    checks.check("PCI devices of node 1", len(local) >= 3, len(local))


def _pinned(checks: Checks, workload: workloads.Workload) -> None:
    """Check that a workload below the slice runs where the slice says."""
    checks.check("below the slice", SLICE in workload.cgroup.path.parts, workload.cgroup)
    checks.equal("sched_getaffinity", kernel.affinity(workload.pid), kernel.ids("8-11"))
    checks.equal("Mems_allowed", kernel.memory_nodes(workload.pid), frozenset({1}))
    pages = kernel.anonymous_pages(workload.pid)
    allocated = workloads.ALLOCATED // 4096
    checks.check("numa_maps", pages.get(1, 0) >= allocated, pages)
    checks.check("untouched", workload.untouched)


def _systemd_run(checks: Checks) -> None:
    _pinned(checks, workloads.systemd_run("first", SLICE))
    workloads.stop_unit("first")


def _podman(guest: Guest) -> None:
    root = oci.write_root(guest.work / "root")
    workload = workloads.podman_run("second", SLICE, "systemd", root)
    _pinned(guest.checks, workload)
    workloads.podman_remove("second")
    workload = workloads.podman_run("third", "/kubepods/podx", "cgroupfs", root)
    guest.checks.check("below the path", "podx" in workload.cgroup.path.parts, workload.cgroup)
    workloads.podman_remove("third")


def _containerd(guest: Guest) -> None:
    containerd.start(guest, "systemd")
    runtime = Runtime()
    sandbox = runtime.run_sandbox("pod", "uid-1", SLICE)
    shell = ["/bin/sh", "-c", workloads.SCRIPT]
    container = runtime.start_container(sandbox, "app", containerd.IMAGE, shell, cpu_shares=1024)
    cgroup = kernel.cgroup_of(runtime.pid_of(container))
    _pinned(guest.checks, workloads.Workload.found("app", cgroup))
    runtime.stop_container(container)
    runtime.remove_sandbox(sandbox)


def _prometheus(guest: Guest) -> None:
    with HTTPServer(("127.0.0.1", 9999), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = prometheus.write_config(guest.work / "prometheus.yml", "page", "127.0.0.1:9999")
        reader = prometheus.Prometheus(guest.work, config)
        guest.checks.eventually("scraped", lambda: reader.value('up{job="page"}'), 1.0)
        guest.checks.equal("value", reader.value("guest_answer"), 42.0)
        guest.checks.equal("last error", [t["lastError"] for t in reader.targets()], [""])
        reader.stop()
        server.shutdown()
    good = prometheus.check_metrics(_Page.METRICS)
    guest.checks.check("promtool takes a good page", good.ok, good)
    bad = prometheus.check_metrics("guest_answer forty-two\n")
    guest.checks.check("promtool rejects a bad page", not bad.ok, bad)


class _Page(BaseHTTPRequestHandler):
    METRICS = "# HELP guest_answer An answer.\n# TYPE guest_answer gauge\nguest_answer 42\n"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.METRICS.encode())
