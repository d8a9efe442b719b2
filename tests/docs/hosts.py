"""The hosts on which the commands of a page are run: emulated hosts with the real agent."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from agent.api.client import AgentClient
from agent.api.documents.admissions import BindRequest
from agent.tools.playground import EmulatedHost

if TYPE_CHECKING:
    from types import TracebackType

ROOT: Final = Path(__file__).resolve().parents[2]
#: The command that the host itself carries out.
RESTART: Final = "systemctl restart numawarden"
#: What follows the settings of a page: where things stand on a host that has no root.
_PLACES: Final = """\
  stateDirectory: {folder}/state
  cdiDirectory: {folder}/cdi
  socketPath: {folder}/agent.sock
  sysfsRoot: {folder}/host
  cgroupMount: {folder}/cgroup
  metrics: {{port: {port}}}
"""
_JOURNALCTL: Final = """\
#!/bin/sh
exec cat {log}
"""
_CURL: Final = """\
#!{python}
import sys, urllib.request
with urllib.request.urlopen(sys.argv[-1]) as answer:
    sys.stdout.write(answer.read().decode())
"""
_PATIENCE: Final = 60.0


class PageHost:
    """A host of a page, on which its commands are run in a shell.

    The commands see the places of a host that is installed as the README says. `journalctl` shows
    the log since the last start, `curl` fetches its last argument. A pod's containers, without its
    init containers, are started as soon as it is admitted, and end with it.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        folder.mkdir()
        self._host = EmulatedHost(folder)
        self._folder = folder
        self._config = folder / "etc/config.yaml"
        self._log = folder / "log"
        self._client = AgentClient(folder / "agent.sock", timeout=_PATIENCE)
        self._life = ExitStack()
        self._started: set[str] = set()
        #: What stands where on a usual host, and here.
        self._places = {
            "/etc/numawarden": f"{folder}/etc",
            "/var/lib/numawarden": f"{folder}/state",
            "/run/numawarden/agent.sock": f"{folder}/agent.sock",
            "/sys/fs/cgroup": f"{folder}/cgroup",
            "127.0.0.1:9464": f"127.0.0.1:{self._host.port}",
        }
        self._config.parent.mkdir(mode=0o700)
        self._config.touch(mode=0o600)
        self._config.write_text(self._complete(settings))
        (folder / "deploy").symlink_to(ROOT / "deploy")
        self._provide("journalctl", _JOURNALCTL.format(log=self._log))
        self._provide("curl", _CURL.format(python=sys.executable))

    def __enter__(self) -> Self:
        self._life.enter_context(self._host.started(self._config, self._log))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._life.close()

    def run(self, command: str) -> str:
        """Return what a command prints, in the words of a usual host."""
        if command == RESTART:
            self._life.close()
            self._life.enter_context(self._host.started(self._config, self._log))
            return ""
        for usual, here in self._places.items():
            command = command.replace(usual, here)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self._follow()
        output = done.stdout
        for usual, here in self._places.items():
            output = output.replace(here, usual)
        return output

    def empty(self) -> None:
        """Remove every pod, with the cgroups of its containers."""
        for pod in self._client.pods():
            self._client.remove(pod.uid)
        self._follow()

    def _follow(self) -> None:
        """Do what a runtime does: end containers of pods that are gone, start those of new ones."""
        pods = {pod.uid: pod for pod in self._client.pods()}
        for uid in sorted(self._started - pods.keys()):
            for file in list(self._host.cgroups.rglob(f"pod{uid}/*/cgroup.procs")):
                _remove_directory(file.parent)
            self._client.reconcile()
        for uid in sorted(pods.keys() - self._started):
            for container in pods[uid].containers:
                if container.kind != "init":
                    self._start(uid, container.name)
        self._started = set(pods)

    def _start(self, uid: str, container: str) -> None:
        cgroup = self._cgroup(uid) / container
        cgroup.mkdir()
        path = "/" + str(cgroup.relative_to(self._host.cgroups))
        self._client.bind(uid, container, BindRequest(cgroup=path))

    def _cgroup(self, uid: str) -> Path:
        return next(self._host.cgroups.rglob(f"pod{uid}"))

    def _complete(self, settings: str) -> str:
        """Return a configuration for here; a section `agent` is the last of a page's settings."""
        section = "" if "\nagent:\n" in settings else "agent:\n"
        places = _PLACES.format(folder=self._folder, port=self._host.port)
        return f"{settings}{section}{places}"

    def _provide(self, name: str, script: str) -> None:
        file = self._folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(script)
        file.chmod(0o755)

    def _environment(self) -> dict[str, str]:
        own = {
            "NUMAWARDEN_SOCKET": f"{self._folder}/agent.sock",
            "COLUMNS": "100",
            "LC_ALL": "C",
            "PATH": f"{self._folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return {**os.environ, **own}


def _remove_directory(cgroup: Path) -> None:
    """Remove a cgroup of plain files."""
    for file in cgroup.iterdir():
        file.unlink()
    cgroup.rmdir()
