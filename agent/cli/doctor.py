"""`numawarden doctor`: whether this host is set up for the agent beside its kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agent.api.documents.checks import DoctorDocument, HostCheckDocument
from agent.cli.could_start import obstacles
from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import CONFIG_FILE, Output, host_option, output_option, settings_option
from agent.cli.output import print_answer
from agent.config.checks import INSTALL_GRPC
from agent.config.load import load_config, load_config_file
from agent.text import printable
from agent.tools.doctor.checks import examine, is_alone
from agent.tools.doctor.facts import HostCheck, Verdict
from agent.tools.doctor.gathering import gather

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.config.model import Config
    from agent.tools.doctor.facts import GatheredFacts

#: How a verdict is shown: what keeps the agent from working stands out.
_SHOWN: Final = {"error": "ERROR"}
#: The key of which `obstacles` says that the host's kubelet does not fit.
_KUBELET: Final = "agent.kubelet"


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The agent's configuration, also one that is still to be installed.  "
    f"[default: {CONFIG_FILE}]",
)
@settings_option()
@host_option("Look at the host whose file system is in this directory.")
@output_option
def doctor(output: Output, file: Path | None, settings: tuple[str, ...], root: Path) -> ExitCode:
    """Say whether this host is set up for the agent: alone, or beside the host's kubelet.

    Use it before a start. Looked at are cgroups, other programs that decide on CPUs, whether a
    kubelet runs that the configuration does not name, and all that the agent opens here
    (directories, sockets, certificates, systemd). Beside a kubelet: its managers, which must be
    off, and what it reserves; the cgroup drivers; the container runtime, its version and NRI; where
    pods' specifications come from; the opt-in resource. Each check names the file or socket, and
    the line to change. Nothing is changed. Run as root: most of the files are root's.

    Exits with 1 if a check is an error, with which the agent would not start or could not do its
    work; warnings and what is not known leave it at 0.
    """
    # Before the package is installed there are the defaults to look at.
    missing = file is None and not CONFIG_FILE.exists()
    file = file or CONFIG_FILE
    config = (
        load_config(b"{}", str(file), settings) if missing else load_config_file(file, settings)
    )
    facts = gather(config, root, with_runtime=True)
    opened = () if missing or root != Path("/") else _for_start(config, file)
    if is_alone(config, facts):
        checks = [_file_check(file, missing=missing), *examine(config, facts), *opened]
    else:
        # What its managers and its drivers must be has checks of its own.
        own = (check for check in opened if check.check != _KUBELET)
        checks = [*examine(config, _with_answers(config, facts, root)), *own]
    document = _document(checks)
    print_answer(document, output, _lines)
    return ExitCode.OK if document.ok else ExitCode.REJECTED


def _file_check(file: Path, *, missing: bool) -> HostCheck:
    if not missing:
        return HostCheck("configuration", Verdict.OK, f"{file}, without mistakes")
    change = "install the package, which brings one, or name another file with --config"
    found = f"{file} does not exist: the defaults are looked at"
    return HostCheck("configuration", Verdict.WARNING, found, change)


def _for_start(config: Config, file: Path) -> Iterator[HostCheck]:
    """Yield what keeps the agent from starting here with a configuration."""
    risks = list(obstacles(config, file, kernel=True))
    for risk in risks:
        verdict = Verdict.ERROR if risk.certain else Verdict.WARNING
        yield HostCheck(risk.key, verdict, risk.found)
    if not risks:
        yield HostCheck("start", Verdict.OK, "nothing found that keeps the agent from starting")


def _with_answers(config: Config, facts: GatheredFacts, root: Path) -> GatheredFacts:
    """Return facts with what the kubelet and the runtime answer; it takes the extra `grpc`."""
    try:
        from agent.tools.doctor.gathering import with_answers  # noqa: PLC0415  # of the extra `grpc`
    except ModuleNotFoundError as error:
        message = f"asking the kubelet and the runtime: {error.name} is not installed; "
        message += INSTALL_GRPC
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    return with_answers(config, facts, root)


def _document(checks: Iterable[HostCheck]) -> DoctorDocument:
    host_checks = tuple(checks)
    return DoctorDocument(
        ok=all(check.verdict is not Verdict.ERROR for check in host_checks),
        checks=tuple(
            HostCheckDocument(
                check=check.check,
                verdict=str(check.verdict),
                found=printable(check.found),
                change=printable(check.change),
            )
            for check in host_checks
        ),
    )


def _lines(document: DoctorDocument) -> Iterator[str]:
    """Yield a line for each check, and one below with what to change."""
    for check in document.checks:
        verdict = _SHOWN.get(check.verdict, check.verdict)
        yield f"{verdict:9}{check.check:26}{check.found}"
        if check.change:
            yield f"{'':35}-> {check.change}"
