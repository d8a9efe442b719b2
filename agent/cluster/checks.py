"""Whether the agent may start beside this host's kubelet: the checks of `numawarden doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agent.server.errors import StartError
from agent.tools.doctor.checks import examine_for_start
from agent.tools.doctor.facts import Verdict
from agent.tools.doctor.gathering import below, gather

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.config.model import Config
    from agent.server.controller import Controller
    from agent.tools.doctor.facts import HostCheck


log = structlog.get_logger(__name__)

#: How often it is looked whether the kubelet's files changed, in seconds.
PERIOD_SECONDS: Final = 10.0
_ROOT: Final = Path("/")
_REMEDY: Final = "see 'numawarden doctor'"


class KubeletNotReadyError(StartError):
    """The kubelet is set up so that the agent must not work beside it; `checks` say why."""

    def __init__(self, directory: Path, checks: tuple[HostCheck, ...]) -> None:
        found = "; ".join(f"{one.check}: {one.line}" for one in checks)
        super().__init__(f"the kubelet of {directory}", found, _REMEDY)
        self.checks = checks


def check_kubelet(config: Config, root: Path = _ROOT) -> tuple[HostCheck, ...]:
    """Return what the checks say, none of them an error.

    Raises `KubeletNotReadyError` on errors, such as two managers of cpusets on one host.
    """
    checks = _checks(config, root)
    errors = tuple(one for one in checks if one.verdict is Verdict.ERROR)
    if errors:
        raise KubeletNotReadyError(config.agent.kubelet.directory, errors)
    return checks


def kubelet_conditions(config: Config, root: Path = _ROOT) -> dict[str, str]:
    """Return what is not as it should be beside the kubelet, by check, and log each of them.

    A check whose facts cannot be read is logged and no condition: before the kubelet's first start
    there are no facts. Raises `KubeletNotReadyError`.
    """
    return _conditions(check_kubelet(config, root))


class KubeletWatch:
    """Makes the checks again whenever the kubelet's own files change, while the agent runs.

    A kubelet whose managers are turned on under a running agent is a condition and an error in the
    log: the agent cannot keep it from starting. What is a condition since the start of the agent is
    named in `noted`.
    """

    def __init__(
        self, config: Config, controller: Controller, noted: Iterable[str], root: Path = _ROOT
    ) -> None:
        self._config = config
        self._controller = controller
        self._noted = frozenset(noted)
        self._root = root
        directory = config.agent.kubelet.directory
        named = config.agent.kubelet.config_file or directory / "config.yaml"
        states = ("cpu_manager_state", "memory_manager_state")
        self._files = (named, *(directory / name for name in states))
        self._stamps = self._read_stamps()

    async def serve(self) -> None:
        """Look at the files every `PERIOD_SECONDS`, until cancelled."""
        worker, clock = self._controller.worker, self._controller.clock
        while True:
            await clock.sleep(PERIOD_SECONDS)
            stamps = await worker.run(self._read_stamps)
            if stamps != self._stamps:
                self._stamps = stamps
                self._note(_conditions(await worker.run(_checks, self._config, self._root)))

    def _note(self, found: Mapping[str, str]) -> None:
        conditions = self._controller.state.conditions
        for name in self._noted - found.keys():
            conditions.pop(name, None)
        conditions.update(found)
        self._noted = frozenset(found)

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        """Return what changes with a file when it is written or replaced; None: not there."""
        return tuple(map(self._stamp, self._files))

    def _stamp(self, file: Path) -> tuple[int, int] | None:
        try:
            status = below(self._root, file).stat()
        except OSError:  # not there, or not readable: the checks say which
            return None
        return status.st_ino, status.st_mtime_ns


def _checks(config: Config, root: Path) -> tuple[HostCheck, ...]:
    return tuple(examine_for_start(config, gather(config, root, with_runtime=False)))


def _conditions(checks: Iterable[HostCheck]) -> dict[str, str]:
    """Return the conditions of checks by their names, and log them."""
    conditions: dict[str, str] = {}
    for one in checks:
        said = {"check": one.check, "found": one.found, "change": one.change}
        if one.verdict is Verdict.ERROR:
            log.error("kubelet set up wrong", **said)
        elif one.verdict is Verdict.WARNING:
            log.warning("kubelet check", **said)
        elif one.verdict is Verdict.UNKNOWN:
            log.info("kubelet check not possible", **said)
        if one.verdict in {Verdict.ERROR, Verdict.WARNING}:
            conditions[one.check] = one.line
    return conditions
