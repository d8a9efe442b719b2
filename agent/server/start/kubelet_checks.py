"""Whether the agent may start beside this host's kubelet: the checks of `numawarden doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agent.server.errors import StartError
from agent.tools.doctor.examination import examine_for_start
from agent.tools.doctor.gathering import gather
from agent.tools.doctor.verdicts import Verdict

if TYPE_CHECKING:
    from agent.config.config import Config
    from agent.tools.doctor.verdicts import HostCheck

log = structlog.get_logger(__name__)

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
    checks = tuple(examine_for_start(config, gather(config, root, with_runtime=False)))
    errors = tuple(one for one in checks if one.verdict is Verdict.ERROR)
    if errors:
        raise KubeletNotReadyError(config.agent.kubelet.directory, errors)
    return checks


def kubelet_conditions(config: Config, root: Path = _ROOT) -> dict[str, str]:
    """Return what is not as it should be beside the kubelet, by check, and log each of them.

    A check whose facts cannot be read is logged and no condition: before the kubelet's first start
    there are no facts. Raises `KubeletNotReadyError`.
    """
    conditions: dict[str, str] = {}
    for one in check_kubelet(config, root):
        if one.verdict is Verdict.WARNING:
            log.warning("kubelet check", check=one.check, found=one.found, change=one.change)
            conditions[one.check] = one.line
        elif one.verdict is Verdict.UNKNOWN:
            log.info("kubelet check not possible", check=one.check, found=one.found)
    return conditions
