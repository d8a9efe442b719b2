"""Show the agent at work, without root and without a NUMA machine: `make demo`.

The real agent runs as a process of its own on the emulated host of `numawarden playground`: a
two-socket machine laid out as a sysfs tree, and a cgroup tree of plain files that follows the
kernel's rules. Everything lives in a temporary directory, `$DEMO`, and is gone afterwards. Every
step is shown as the command that does the same in a shell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agent.cli.errors import ExitCode
from tests.demo.host import DemoHost

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "deploy" / "examples"
_METRICS: Final = ("resource_manager_allocations_total", "resource_manager_container_assignments")


def main() -> int:
    """Run the demonstration; return 1 when anything went otherwise than described."""
    with TemporaryDirectory(prefix="numawarden-demo-") as folder:
        host = DemoHost(Path(folder))
        _title("The host: two sockets, one NUMA node each (numawarden topology)")
        host.command("topology", "--root", str(host.sysfs))
        with host.agent("pod") as agent:
            _title("Pod scope: containers share what the pod was given (KEP-5526, example 1)")
            _admit(host, "shared-only")
            _title("Pod scope: one container has CPUs of its own (KEP-5526, example 2)")
            _admit(host, "mixed")
            _title("Who has which CPU and how much memory (numawarden map)")
            host.command("map")
            _title("Pod scope: a pod that would leave a container without CPUs (example 3)")
            host.command("admit", str(EXAMPLES / "empty-pool.yaml"), expect=ExitCode.REJECTED)
            _title("What if: how many more would fit, and what would one of them get")
            host.command("fit", str(EXAMPLES / "guaranteed.yaml"))
            host.command("admit", "--dry-run", str(EXAMPLES / "guaranteed.yaml"))
            _title("Another process changes the pod's cgroup; the agent repairs it")
            host.interfere("mixed", "cpuset.cpus", "0")
            host.command("history", "mixed")
            _title("What it had is free again, the shared pool has grown (numawarden remove)")
            host.end("shared-only")
            host.command("remove", "shared-only")
            host.command("status")
            _title("The agent crashes. Nothing of the pods has changed:")
            host.crash(agent)
            host.show_files("mixed")
        with host.agent("pod"):
            _title("Started again: the pods are as they were (numawarden list)")
            host.command("list")
        _title("The agent was stopped. Nothing of the pods has changed:")
        host.show_files("mixed")
        with host.agent("container"):
            _title("Started again in container scope: the pod is as it was (numawarden list)")
            host.command("list")
            _title("Container scope: the same pod, its other containers share the node's CPUs")
            _admit(host, "mixed", name="mixed-again")
            _title("The metrics (curl http://127.0.0.1:PORT/metrics)")
            host.show_metrics(_METRICS)
    return 0


def _admit(host: DemoHost, example: str, name: str | None = None) -> None:
    """Admit an example, start its containers as a runtime would, and show every changed file."""
    manifest = host.manifest(EXAMPLES / f"{example}.yaml", name or example)
    host.snapshot()
    host.command("admit", str(manifest))
    host.start(name or example)
    host.show_changes()


def _title(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
