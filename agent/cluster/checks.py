"""Whether the agent may start beside this host's kubelet: the checks of `numawarden doctor`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config.model import VERSION_KEY, ConfigError
from agent.server.configured import GoverningVersion
from agent.server.errors import StartError
from agent.tools.doctor.checks import examine_for_start
from agent.tools.doctor.facts import Verdict
from agent.tools.doctor.gathering import below, gather
from agent.tools.doctor.version import program_of, reported_version, rules_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from agent.config.model import Config
    from agent.server.configured import ConfiguredHost
    from agent.server.controller import Controller
    from agent.tools.doctor.facts import HostCheck
    from agent.versions import ReportedVersion


log = structlog.get_logger(__name__)

#: How often it is looked whether the kubelet's files changed, in seconds.
PERIOD_SECONDS: Final = 10.0
#: How long after a start or a change the Node is asked again, in seconds: a kubelet that starts has
#: its sockets before the Node has its version. As long is waited after a failure.
NODE_SECONDS: Final = 60.0
_ROOT: Final = Path("/")
_REMEDY: Final = "see 'numawarden doctor'"


class KubeletNotReadyError(StartError):
    """The kubelet is set up so that the agent must not work beside it; `checks` say why."""

    def __init__(self, directory: Path, checks: tuple[HostCheck, ...]) -> None:
        found = "; ".join(f"{one.check}: {one.line}" for one in checks)
        super().__init__(f"the kubelet of {directory}", found, _REMEDY)


def check_kubelet(config: Config, root: Path = _ROOT) -> ObservedKubelet:
    """Return what was found, no check of it an error.

    Raises `KubeletNotReadyError` on errors, such as two managers of cpusets on one host.
    """
    found = _observe(config, root)
    errors = tuple(one for one in found.checks if one.verdict is Verdict.ERROR)
    if errors:
        raise KubeletNotReadyError(config.agent.kubelet.directory, errors)
    return found


class ObservedKubelet(Struct, frozen=True):
    """What the checks say; the kubelet's program, "" where none is known, and what that says.

    The program is asked for its version where the configuration names none.
    """

    checks: tuple[HostCheck, ...]
    program: str
    reported: ReportedVersion | None

    @property
    def is_silent(self) -> bool:
        """Whether the kubelet's program was to be asked and does not say a version."""
        return self.reported is not None and not self.reported.version

    @property
    def governing(self) -> GoverningVersion | None:
        """Whose rules hold, None where the kubelet does not say."""
        reported = self.reported
        version = None if reported is None else rules_of(reported.version)
        if reported is None or version is None:
            return None
        return GoverningVersion(version, f"{reported.source} says {reported.version}")

    def conditions(self) -> dict[str, str]:
        """Return what is not as it should be beside the kubelet, by check, and log each of them.

        A check whose facts cannot be read is logged and no condition: before the kubelet's first
        start there are no facts.
        """
        return _conditions(self.checks)


class KubeletWatch:
    """Makes the checks again whenever the kubelet's own files change, while the agent runs.

    A kubelet whose managers are turned on under a running agent is a condition and an error in the
    log: the agent cannot keep it from starting. What is a condition since the start of the agent is
    named in `noted`. A kubelet of another version than before brings other rules: `govern` returns
    the host under them, or raises `ConfigError`. `ask_node` returns what the Node object says where
    the kubelet's program says nothing.
    """

    def __init__(
        self,
        config: Config,
        controller: Controller,
        noted: Iterable[str],
        govern: Callable[[GoverningVersion | None], ConfiguredHost],
        root: Path = _ROOT,
        ask_node: Callable[[], Awaitable[ReportedVersion]] | None = None,
    ) -> None:
        self._config = config
        self._ask_node = ask_node
        #: When the Node is asked again, in seconds of the clock; None: not before a change.
        self._ask_at: float | None = None if ask_node is None else float("-inf")
        self._controller = controller
        self._noted = frozenset(noted)
        self._govern = govern
        self._root = root
        directory = config.agent.kubelet.directory
        named = config.agent.kubelet.config_file or directory / "config.yaml"
        states = ("cpu_manager_state", "memory_manager_state")
        # Made again at each start of a kubelet, and seen in a pod.
        sockets = (directory / "pod-resources/kubelet.sock", directory / "pods-api/pods-api.sock")
        self._files = (named, *(directory / name for name in states), *sockets)
        self._program = program_of(gather(config, root, with_runtime=False))
        self._stamps = self._read_stamps()

    async def serve(self) -> None:
        """Look at the files every `PERIOD_SECONDS`, until cancelled."""
        worker, clock = self._controller.worker, self._controller.clock
        while True:
            stamps, now = await worker.run(self._read_stamps), clock.monotonic()
            changed = stamps != self._stamps
            asks = self._ask_at is not None and now >= self._ask_at
            if changed or asks:
                again = changed or self._ask_at == float("-inf")
                self._stamps, self._ask_at = stamps, now + NODE_SECONDS if again else None
                found = await worker.run(_observe, self._config, self._root)
                if self._ask_node is not None and found.is_silent:
                    node = await self._ask_node()
                    if not node.version:
                        self._ask_at = now + NODE_SECONDS
                    found = await worker.run(_observe, self._config, self._root, node)
                self._program = found.program
                self._note(await self._governed(found))
            await clock.sleep(PERIOD_SECONDS)

    async def _governed(self, found: ObservedKubelet) -> dict[str, str]:
        """Go by the rules of the kubelet's version; return the conditions."""
        controller, conditions = self._controller, found.conditions()
        governing, before = found.governing, controller.state.configured.governing
        if governing is None or governing == before:
            return conditions
        try:
            await controller.take_over(partial(self._govern, governing))
        except ConfigError as error:
            log.error("configuration does not fit the version", why=str(error))  # noqa: TRY400  # not a defect of the agent
            return {**conditions, VERSION_KEY: str(error)}
        if governing.version is not before.version:
            changed = f"kubernetesVersion is {governing.version}, it was {before.version}"
            log.warning("policy changed; existing allocations are kept", changes=[changed])
            controller.publish("ConfigurationChanged", message=f"{changed}: {governing.source}")
        return conditions

    def _note(self, found: Mapping[str, str]) -> None:
        conditions = self._controller.state.observed.conditions
        for name in self._noted - found.keys():
            conditions.pop(name, None)
        conditions.update(found)
        self._noted = frozenset(found)

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        """Return what changes with a file when it is written or replaced; None: not there."""
        program = (Path(self._program),) if self._program else ()
        return tuple(map(self._stamp, (*self._files, *program)))

    def _stamp(self, file: Path) -> tuple[int, int] | None:
        try:
            status = below(self._root, file).stat()
        except OSError:  # not there, or not readable: the checks say which
            return None
        return status.st_ino, status.st_mtime_ns


def _observe(config: Config, root: Path, node: ReportedVersion | None = None) -> ObservedKubelet:
    """Return what is found; `node`: what the Node object says, for a program that says nothing."""
    facts = gather(config, root, with_runtime=False)
    if config.kubernetes_version is None:
        reported = reported_version(facts, root)
        if node is not None and not reported.version:
            problem = f"{reported.problem}; {node.problem}"
            reported = node if node.version else replace(reported, problem=problem)
        facts = replace(facts, kubelet_version=reported)
    checks = tuple(examine_for_start(config, facts))
    return ObservedKubelet(checks, program_of(facts), facts.kubelet_version)


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
