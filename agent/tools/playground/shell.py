"""The playground itself: an agent that is kept running, and a shell in which to ask it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from agent.tools.playground.embedded import PATIENCE, EmbeddedHost, numawarden
from agent.tools.playground.errors import PlaygroundError
from agent.tools.playground.pods import manifests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How long after an agent that could not start the next one is tried, in seconds (RestartSec=).
RESTART_SECONDS: Final = 2.0
_SCRIPT: Final = '#!/bin/sh\nexec {program} -P -m agent.tools.playground.{module} {verb} "$@"\n'
_ALIAS: Final = '#!/bin/sh\nexec {program} "$@"\n'
#: What the shell can do besides asking the agent, as systemd and a runtime do on a usual host.
_VERBS: Final = ("start-containers", "cgroup-of", "crash-agent", "restart-agent", "agent-log")
_BASH: Final = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PATH="$PLAYGROUND/bin:$PATH"
PS1='playground:\\w\\$ '
"""
WELCOME: Final = """\
A host of its own, in {folder}. Its agent runs; nothing outside of the directory is
touched, and the directory is removed when you leave (exit, or Ctrl-D).

  numawarden map                         who has which CPU
  numawarden admit pods/mixed.yaml       a pod with CPUs of its own, and a shared pool of its own
  start-containers mixed                 what a container runtime does then
  numawarden show mixed                  what the pod has, why, and what the kernel says
  numawarden admit pods/too-large.yaml   a rejection, with advice that was tried
  numawarden fit --count pods/mixed.yaml   how many more of them would fit
  echo 0 > $(cgroup-of mixed)/cpuset.cpus; numawarden verify    another process interferes
  numawarden history mixed               what happened to the pod, and who did it
  crash-agent; numawarden list           the agent is killed and started again; pods stay
  agent-log                              what the agent says of all this

"""


class Playground:
    """An embedded host whose agent is started again whenever it ends, as a service is."""

    def __init__(self, host: EmbeddedHost, scope: str) -> None:
        self.host = host
        self._config = host.configure(scope, level="info")
        self._ending = threading.Event()
        self._life = ExitStack()
        _provide(host.folder)
        self._log = self._life.enter_context((host.folder / "agent.log").open("wb"))
        self._notify = self._life.enter_context(host.notified())
        self._agent = self._launch()
        self._watcher = threading.Thread(target=self._keep, name="agent")

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._agent.terminate()
        self._watcher.join(2 * PATIENCE)
        self._life.close()

    def run(self, command: Sequence[str]) -> int:
        """Run a command, or an interactive shell if there is none, and return its exit status."""
        folder = self.host.folder
        path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environment = self.host.environment(PLAYGROUND=str(folder), PATH=path)
        if "COLUMNS" not in os.environ:
            del environment["COLUMNS"]  # the width of the terminal counts
        argv = list(command) or _shell(folder)
        try:
            # What the user asks for, in the user's own name.
            return subprocess.run(argv, cwd=folder, env=environment, check=False).returncode  # noqa: S603
        except OSError as error:
            raise PlaygroundError(f"cannot run {argv[0]}: {error.strerror}") from error

    def _launch(self) -> subprocess.Popen[bytes]:
        agent = self.host.launch(self._config, self._log, self._notify)
        (self.host.folder / "agent.pid").write_text(f"{agent.pid}\n")
        return agent

    def _keep(self) -> None:
        """Start the agent again whenever it ends, until the playground does."""
        while True:
            self._agent.wait()
            if self._ending.is_set():
                return
            try:
                self._agent = self._launch()
            except PlaygroundError:  # its log says why; the configuration may be mended meanwhile
                self._ending.wait(RESTART_SECONDS)
            if self._ending.is_set():  # since `__exit__` may have ended the agent before this one
                self._agent.terminate()


def end_by_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as an exit does: agent and directory go with it."""

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)


def _shell(folder: Path) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        return ["/bin/sh", "-i"]
    (folder / "bashrc").write_text(_BASH)
    return [bash, "--rcfile", str(folder / "bashrc"), "-i"]


def _provide(folder: Path) -> None:
    """Write the commands of the shell and the manifests of the first pods."""
    (folder / "bin").mkdir()
    scripts = {
        verb: _SCRIPT.format(program=sys.executable, module="verbs", verb=verb) for verb in _VERBS
    }
    scripts["numawarden"] = _ALIAS.format(program=numawarden())
    for name, script in scripts.items():
        file = folder / "bin" / name
        file.write_text(script)
        file.chmod(0o755)
    (folder / "pods").mkdir()
    for name, manifest in manifests().items():
        (folder / "pods" / f"{name}.yaml").write_text(manifest)
