"""The `numawarden` command: its subcommands, imported when called, and error handling."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from agent import __version__
from agent.cli.errors import ExitCode, exit_code_of, lines_of, open_standard_output
from agent.cli.suggestions import CommandGroup, unknown_option
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """The location of a command (`module:attribute`) and its one-line help."""

    target: str
    summary: str


class LazyGroup(CommandGroup):
    """A group that knows its commands by name and summary and imports one only to run it."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]  # click's own keywords, passed through
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which they were named."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of a name, None if it does not exist."""
        known = self._lazy.get(cmd_name)
        if known is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = known.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{known.target} is not a command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with a text, importing none, then the options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only a shell needs it

        return [
            *(
                CompletionItem(name, help=known.summary)
                for name, known in self._lazy.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their summaries, importing none."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, known.summary) for name, known in self._lazy.items()])


COMMANDS: Final = {
    "agent": LazyCommand("agent.cli.agent:run", "Run the agent in the foreground."),
    "admit": LazyCommand("agent.cli.pods:admit", "Admit the pod of a manifest."),
    "diff": LazyCommand("agent.cli.pods:diff", "Show what admitting a manifest would change."),
    "run": LazyCommand(
        "agent.cli.workloads:run", "Run a command in a pod of its own, freed at its end."
    ),
    "attach": LazyCommand("agent.cli.workloads:attach", "Give a systemd unit an allocation."),
    "detach": LazyCommand("agent.cli.workloads:detach", "Free the allocation of a systemd unit."),
    "resize": LazyCommand("agent.cli.resize:resize", "Give a running pod other amounts."),
    "plan": LazyCommand("agent.cli.moves:plan", "Say which moves would make room for a pod."),
    "apply": LazyCommand("agent.cli.moves:apply", "Move the pods of a plan."),
    "remove": LazyCommand("agent.cli.pods:remove", "Remove a pod and free its allocation."),
    "fit": LazyCommand("agent.cli.fit:fit", "Say whether and how often a pod would fit."),
    "list": LazyCommand("agent.cli.pods:list_pods", "List the pods with their allocations."),
    "show": LazyCommand("agent.cli.pods:show", "Show one pod: allocation, explanation, kernel."),
    "map": LazyCommand("agent.cli.host:show_map", "Show which CPUs and memory each pod has."),
    "dashboard": LazyCommand("agent.cli.lab:dashboard", "Serve a web page of the map."),
    "bind": LazyCommand("agent.cli.pods:bind", "Bind a container to its cgroup."),
    "unbind": LazyCommand("agent.cli.pods:unbind", "Remove the binding of a container."),
    "watch": LazyCommand("agent.cli.health:watch", "Print events as they happen."),
    "history": LazyCommand("agent.cli.history:history", "Show what happened, and who did it."),
    "interference": LazyCommand(
        "agent.cli.interference:interference", "Say who else runs on exclusive CPUs."
    ),
    "check": LazyCommand("agent.cli.check:check", "Compare with the kernel now; one verdict."),
    "doctor": LazyCommand("agent.cli.doctor:doctor", "Say before a start whether it can work."),
    "status": LazyCommand("agent.cli.health:status", "Show what is so now."),
    "cordon": LazyCommand("agent.cli.maintenance:cordon", "Take CPUs or nodes out of use."),
    "uncordon": LazyCommand("agent.cli.maintenance:uncordon", "Use CPUs or nodes again."),
    "drain": LazyCommand("agent.cli.maintenance:drain", "Say which pods would have to end."),
    "isolation": LazyCommand(
        "agent.cli.isolation:isolation", "Show or restore what was set for exclusive CPUs."
    ),
    "topology": LazyCommand("agent.cli.host:topology", "Show the CPUs and nodes of a host."),
    "capture": LazyCommand("agent.cli.host:capture", "Archive what the agent reads of a host."),
    "config": LazyCommand("agent.cli.config:config", "Check and show a configuration."),
    "playground": LazyCommand("agent.cli.lab:playground", "Try the agent on an emulated host."),
    "state": LazyCommand("agent.cli.state:state", "Take the kubelet's state over, or write it."),
    "unpublish": LazyCommand(
        "agent.cli.unpublish:unpublish", "Take the node's topology out of the cluster."
    ),
    "completion": LazyCommand(
        "agent.cli.completion:completion", "Print the completion script of a shell."
    ),
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
    """Allocate CPUs, memory nodes and devices to pods, and enforce the allocations."""


def main() -> None:
    """Run the command line and exit; an expected error is printed in a line, not as a traceback."""
    open_standard_output()
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code; a defect is raised unchanged."""
    try:
        outcome = numawarden.main(arguments, prog_name="numawarden", standalone_mode=False)
        sys.stdout.flush()  # where that fails, the command does
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        click.echo(printable(f"numawarden: error: {_usage_text(error)}"), err=True)
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
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
    if isinstance(error, click.NoSuchOption):
        message = unknown_option(error)
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see '{context.command_path} --help'" if context else message


if __name__ == "__main__":
    main()
