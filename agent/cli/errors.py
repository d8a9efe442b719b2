"""How a command ends: its exit code, errors of one line, and a reader that goes away.

Scripts may rely on the exit codes. Nothing here imports more than the standard library.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from errno import EBADF
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Final, Self

from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import ReadableBuffer as Buffer


class ExitCode(IntEnum):
    """The exit status of every command; `meaning` is what the manual says of it."""

    meaning: str

    OK = 0, "Done; a pod is admitted and enforced."
    REJECTED = 1, "Rejected; no room; a difference; a condition (status, check); an error (doctor)."
    USAGE = 2, "The command line is wrong."
    BAD_INPUT = 3, "A manifest, configuration, state or host tree is wrong or cannot be read."
    UNREACHABLE = 4, "The agent does not respond: not running, no permission, or disconnected."
    ENVIRONMENT = 5, "The host does not allow it: no root, no cgroup v2, a socket in use, etc."
    NOT_FOUND = 6, "The agent knows no such pod or container."
    NOT_ENFORCED = 7, "A pod is admitted, but not all that it was given is enforced or prepared."
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
    "agent.state.checkpoint.StateDirectoryError": ExitCode.ENVIRONMENT,
    "agent.state.checkpoint.CheckpointIOError": ExitCode.ENVIRONMENT,
    "agent.state.checkpoint.CheckpointError": ExitCode.BAD_INPUT,
    "agent.api.client.Unreachable": ExitCode.UNREACHABLE,
    "agent.reconcile.report.EnforcementError": ExitCode.ENVIRONMENT,
    "agent.tools.kubelet_state.format.StateFileIOError": ExitCode.ENVIRONMENT,
    "agent.tools.kubelet_state.format.KubeletStateError": ExitCode.BAD_INPUT,
    "agent.server.errors.StartError": ExitCode.ENVIRONMENT,
    "cgroupfs.errors.CgroupError": ExitCode.ENVIRONMENT,
    "agent.tools.playground.PlaygroundError": ExitCode.ENVIRONMENT,
    "sysfs.files.SysfsError": ExitCode.BAD_INPUT,
    "systemd.units.SystemdError": ExitCode.ENVIRONMENT,
    "builtins.OSError": ExitCode.BAD_INPUT,
}


class CommandError(Exception):
    """A command failed; `code` is the exit code of the process."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class WrongFileError(CommandError):
    """One of the files of a command is wrong or cannot be read; the others may be right."""


def exit_code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code of an expected error, None for a defect of the program."""
    if isinstance(error, CommandError):
        return error.code
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__)
    return next((EXIT_CODES[name] for name in names if name in EXIT_CODES), None)


def lines_of(error: BaseException) -> list[str]:
    """Return the lines printed for an expected error: one, and one more for each detail or note."""
    first, *rest = text_of(error).splitlines() or [type(error).__name__]
    rest += getattr(error, "__notes__", ())
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


class StandardOutput(FileIO):
    """Standard output whose reader may go away: what is written afterwards is dropped.

    A command ends as it would otherwise, with its own exit code.
    """

    gone = False

    def write(self, text: Buffer, /) -> int:
        """Write; raises `CommandError` once where that fails for another reason."""
        if not self.gone:
            try:
                return super().write(text)
            except BrokenPipeError:
                self.gone = True
            except OSError as error:
                self.gone = True
                why = "it is closed" if error.errno == EBADF else error.strerror
                message = f"standard output: {why}"
                raise CommandError(message, ExitCode.ENVIRONMENT) from error
        return memoryview(text).nbytes


def reader_is_gone() -> bool:
    """Return whether nothing reads standard output any longer."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, StandardOutput) and raw.gone


def open_standard_output() -> None:
    """Have `sys.stdout` be a `StandardOutput`, and give a place to descriptors that are closed.

    Standard output that is closed fails when it is written.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            flags = os.O_RDONLY if descriptor == 1 else os.O_RDWR
            os.open(os.devnull, flags)  # takes the lowest descriptor that is free
    former = sys.stdout
    encoding, errors = (former.encoding, former.errors) if former else ("utf-8", "strict")
    raw = StandardOutput(1, "wb", closefd=False)
    buffered = BufferedWriter(raw)
    lines = raw.isatty()
    sys.stdout = TextIOWrapper(buffered, encoding, errors, line_buffering=lines)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # a descriptor, to the end
