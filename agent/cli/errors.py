"""Expected errors of commands: each is reported in one line, with an exit code.

Scripts may rely on the exit codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class ExitCode(IntEnum):
    """The exit status of every command; `meaning` is what the manual says of it."""

    meaning: str

    OK = 0, "Done; a pod is admitted and enforced."
    REJECTED = 1, "A pod was rejected, a comparison found differences, or there are conditions."
    USAGE = 2, "The command line is wrong."
    BAD_INPUT = 3, "A manifest, configuration, state or host tree is wrong or cannot be read."
    UNREACHABLE = 4, "The agent does not respond: not running, no permission, or disconnected."
    ENVIRONMENT = 5, "The host does not allow it: no root, no cgroup v2, a socket in use, etc."
    NOT_FOUND = 6, "The agent knows no such pod or container."
    NOT_ENFORCED = 7, "The pod is admitted, but the kernel does not yet enforce its allocation."
    AGENT_FAILED = 8, "The agent reported an internal error; see its log."
    INTERRUPTED = 130, "Interrupted from the keyboard (128 + SIGINT)."

    def __new__(cls, code: int, meaning: str) -> Self:
        """Make the number of an exit status that knows its meaning."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made


#: The roots of the packages' trees of exceptions, by full name. A name, not the class: a class in
#: this table would have to be imported, and `--help` would pay for every package.
EXIT_CODES: Final[Mapping[str, ExitCode]] = {
    "agent.yaml.DocumentError": ExitCode.BAD_INPUT,
    "agent.managers.errors.ManagerError": ExitCode.BAD_INPUT,
    "agent.managers.cpu.topology.CpuTopologyError": ExitCode.BAD_INPUT,
    "agent.state.errors.StateDirectoryError": ExitCode.ENVIRONMENT,
    "agent.state.errors.CheckpointIOError": ExitCode.ENVIRONMENT,
    "agent.state.errors.CheckpointError": ExitCode.BAD_INPUT,
    "agent.api.client.Unreachable": ExitCode.UNREACHABLE,
    "agent.reconcile.errors.EnforcementError": ExitCode.ENVIRONMENT,
    "agent.tools.kubelet_state.errors.StateFileIOError": ExitCode.ENVIRONMENT,
    "agent.tools.kubelet_state.errors.KubeletStateError": ExitCode.BAD_INPUT,
    "agent.server.errors.StartError": ExitCode.ENVIRONMENT,
    "cgroupfs.errors.CgroupError": ExitCode.ENVIRONMENT,
    "agent.tools.playground.errors.PlaygroundError": ExitCode.ENVIRONMENT,
    "sysfs.files.SysfsError": ExitCode.BAD_INPUT,
    "systemd.errors.SystemdError": ExitCode.ENVIRONMENT,
    "builtins.OSError": ExitCode.BAD_INPUT,
}


class CommandError(Exception):
    """A command failed; `code` is the exit code of the process."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


def exit_code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code of an expected error, None for a defect of the program."""
    if isinstance(error, CommandError):
        return error.code
    for name in _class_names(type(error)):
        code = EXIT_CODES.get(name)
        if code is not None:
            return code
    return None


def lines_of(error: BaseException) -> list[str]:
    """Return the lines printed for an expected error: one, and one more for each detail."""
    first, *rest = text_of(error).splitlines() or [type(error).__name__]
    lines = [f"numawarden: error: {first}", *(f"  {line.strip()}" for line in rest if line.strip())]
    return [printable(line) for line in lines]


def text_of(error: BaseException) -> str:
    """Return the message of an expected error; an `OSError` begins with its file."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(line: str) -> str:
    """Return a line with control characters of its names escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _class_names(kind: type[BaseException]) -> Iterator[str]:
    for base in kind.__mro__:
        yield f"{base.__module__}.{base.__qualname__}"
