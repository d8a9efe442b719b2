"""A kubelet on this host that the configuration does not name: two managers of the same CPUs.

Such a kubelet and the agent give the same CPUs to different pods, and the kubelet removes cgroups
of pods that it does not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.safe_files import trusted_users
from agent.server.errors import StartError

if TYPE_CHECKING:
    from agent.config.model import Config
    from agent.server.controller import Controller

ROOT: Final = Path("/")
#: How often a kubelet is looked for that was started after the agent, in seconds.
PERIOD_SECONDS: Final = 60.0
_SUBJECT: Final = "kubelet"
_REMEDY: Final = (
    "stop it, or write `agent: {kubelet: {enabled: true}}` for an agent that manages its pods (see "
    "'numawarden doctor'); `agent: {kubelet: {ignored: true}}` says that both are meant to run"
)


def check_undeclared(config: Config, root: Path = ROOT) -> None:
    """Raise `StartError` if a kubelet runs that the configuration neither enables nor ignores.

    Processes are those below `root`/proc.
    """
    kubelet = config.agent.kubelet
    if kubelet.enabled or kubelet.ignored:
        return
    for process in (root / "proc").glob("[0-9]*"):
        if _is_kubelet(process):
            found = f"a kubelet runs here (process {process.name}) and agent.kubelet.enabled is "
            found += "false: two would give the same CPUs to different pods"
            raise StartError("agent.kubelet", found, _REMEDY)


def _is_kubelet(process: Path) -> bool:
    """Return whether a process is root's kubelet: other users call programs as they like."""
    try:
        name = (process / "comm").read_bytes().strip()
        return name == b"kubelet" and process.stat().st_uid in trusted_users()
    except OSError:  # it has ended
        return False


async def watch_undeclared(controller: Controller, config: Config, root: Path) -> None:
    """Keep a condition while a kubelet runs that was started after the agent, until cancelled."""
    conditions = controller.state.conditions
    while True:
        await controller.clock.sleep(PERIOD_SECONDS)
        try:
            await controller.worker.run(check_undeclared, config, root)
        except StartError as error:
            conditions[_SUBJECT] = str(error)
        else:
            conditions.pop(_SUBJECT, None)
