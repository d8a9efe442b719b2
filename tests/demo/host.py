"""The emulated host of the demonstration, on which every step is shown."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from agent.tools.playground import PATIENCE, EmulatedHost, numawarden

if TYPE_CHECKING:
    from pathlib import Path

#: The files that an allocation decides; the others follow from them.
_FILES: Final = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpu.max")

#: How often a cgroup is looked at that the agent is to repair, in seconds.
_LOOK: Final = 0.1


class DemoError(Exception):
    """The demonstration did not go as described."""


class DemoHost(EmulatedHost):
    """A host whose commands are printed with their output."""

    def __init__(self, folder: Path, cgroup_root: str = "/") -> None:
        super().__init__(folder, cgroup_root=cgroup_root)
        self._before: dict[Path, str] = {}

    def command(self, *arguments: str, expect: int = 0) -> str:
        """Run one `numawarden` command, show it with its output, and return the output."""
        shown = " ".join(arguments).replace(str(self.folder), "$DEMO")
        print(f"$ numawarden {shown}", flush=True)
        done = subprocess.run(
            [numawarden(), *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout, flush=True)
        if done.returncode != expect:
            raise DemoError(f"numawarden {shown}: exit code {done.returncode}, expected {expect}")
        return done.stdout

    def manifest(self, example: Path, name: str) -> Path:
        """Return an example manifest, under another name if one is asked for."""
        copy = self.folder / f"{name}.yaml"
        original = f"name: {example.stem}\n"
        copy.write_text(example.read_text().replace(original, f"name: {name}\n", 1))
        return copy

    def start(self, pod: str) -> None:
        """Do what a runtime does with a pod's containers, and show each step."""
        uid = next(each.uid for each in self.client().pods() if each.name == pod)
        for cgroup in self.start_containers(uid):
            shown = str(cgroup).replace(str(self.folder), "$DEMO")
            path = cgroup.relative_to(self.cgroups)
            process = (cgroup / "cgroup.procs").read_text().strip()
            print(f"$ mkdir {shown}; echo {process} > {shown}/cgroup.procs", flush=True)
            print(f"$ numawarden bind {pod} {cgroup.name} --cgroup /{path}", flush=True)

    def end(self, pod: str) -> None:
        """Do what a runtime does when a pod's containers end, and show it."""
        uid = next(each.uid for each in self.client().pods() if each.name == pod)
        below = next(path for path in self.cgroups.rglob("pod*") if path.name == f"pod{uid}")
        for cgroup in sorted(path for path in below.iterdir() if path.is_dir()):
            print(f"$ rm -r {str(cgroup).replace(str(self.folder), '$DEMO')}", flush=True)
            shutil.rmtree(cgroup)

    def interfere(self, pod: str, name: str, text: str) -> None:
        """Write a file of a pod's cgroup as another process, and show that the agent repairs it."""
        uid = next(each.uid for each in self.client().pods() if each.name == pod)
        file = next(path for path in self.cgroups.rglob("pod*") if path.name == f"pod{uid}") / name
        shown = str(file).replace(str(self.folder), "$DEMO")
        desired = file.read_text()
        print(f"$ echo {text} > {shown}", flush=True)
        file.write_text(f"{text}\n")
        deadline = monotonic() + PATIENCE
        while file.read_text() != desired:
            if monotonic() > deadline:
                raise DemoError(f"{file} is not repaired after {PATIENCE:.0f} s")
            sleep(_LOOK)
        print(f"$ cat {shown}  # soon after\n{desired}", flush=True)

    def crash(self, agent: subprocess.Popen[bytes]) -> None:
        """Kill the agent, as the kernel does when memory is short."""
        print(f"$ kill -KILL {agent.pid}", flush=True)
        agent.kill()
        agent.wait()

    def snapshot(self) -> None:
        """Remember what every cgroup file says."""
        self._before = self._contents()

    def show_changes(self) -> None:
        """Show the files that say something else than when they were last remembered."""
        for file, text in sorted(self._contents().items()):
            if self._before.get(file) != text:
                print(f"  {file.relative_to(self.cgroups)} = {text}", flush=True)

    def show_files(self, pod: str) -> None:
        """Show the cgroup files of a pod and its containers."""
        below = next(path for path in self.cgroups.rglob("pod*") if (path / "database").is_dir())
        for file, text in sorted(self._contents().items()):
            if below in file.parents:
                print(f"  {pod}: {file.relative_to(below)} = {text}", flush=True)

    def show_metrics(self, names: tuple[str, ...]) -> None:
        """Show the named counters that have counted anything."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        for line in lines:
            if line.startswith(names) and not line.endswith(" 0.0"):
                print(f"  {line}", flush=True)

    def _contents(self) -> dict[Path, str]:
        return {
            file: file.read_text().strip() for name in _FILES for file in self.cgroups.rglob(name)
        }
