"""The `numawarden` command: its subcommands, and how errors end it."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from agent import __version__
from agent.cli.errors import exit_code_of, lines_of
from agent.cli.exit_codes import ExitCode
from agent.cli.lazy import LazyCommand, LazyGroup

COMMANDS: Final = {
    "run": LazyCommand("agent.cli.run:run", "Run the agent in the foreground."),
    "admit": LazyCommand("agent.cli.pods:admit", "Admit the pod of a manifest."),
    "remove": LazyCommand("agent.cli.pods:remove", "Remove a pod and free what it holds."),
    "list": LazyCommand("agent.cli.pods:list_pods", "List the pods and what they hold."),
    "show": LazyCommand("agent.cli.pods:show", "Show one pod: grant, explanation, kernel."),
    "bind": LazyCommand("agent.cli.pods:bind", "Tell which cgroup a container of a pod got."),
    "unbind": LazyCommand("agent.cli.pods:unbind", "Give up what bind told of a container."),
    "watch": LazyCommand("agent.cli.watch:watch", "Print events as they happen."),
    "verify": LazyCommand("agent.cli.verify:verify", "Compare the kernel with the ledger."),
    "status": LazyCommand("agent.cli.status:status", "Show how the agent is doing."),
    "topology": LazyCommand("agent.cli.topology:topology", "Show the CPUs and nodes of a host."),
    "capture": LazyCommand("agent.cli.capture:capture", "Archive what the agent reads of a host."),
    "config": LazyCommand("agent.cli.config:config", "Check and show a configuration."),
    "replay": LazyCommand("agent.cli.replay:replay", "Decide pods on a described host."),
    "state": LazyCommand("agent.cli.state:state", "Take the kubelet's state over, or write it."),
}

EPILOG: Final = "Exit codes: " + ", ".join(
    f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode
)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="numawarden")
def numawarden() -> None:
    """Give pods their CPUs, memory nodes and devices, and keep the kernel to it."""


def main() -> None:
    """Run the command line and exit; an expected error is told in a line, never a traceback."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code; a defect of ours is raised as it is."""
    try:
        outcome = numawarden.main(arguments, prog_name="numawarden", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"numawarden: error: {_usage_text(error)}", err=True)
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):  # click exits when it meets a closed pipe itself
        return _reader_went_away()
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        for line in lines_of(error):
            click.echo(line, err=True)
        return code
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _usage_text(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see '{context.command_path} --help'" if context else message


def _reader_went_away() -> int:
    # Python flushes standard output once more at exit and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


if __name__ == "__main__":
    main()
