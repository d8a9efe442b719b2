"""What can go wrong outside the guest: a missing tool, a broken cache, a bad command line."""

from __future__ import annotations


class GuestError(Exception):
    """The guests cannot be run: `problem` in one line, `remedy` says what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class CommandError(GuestError):
    """A program of the host failed: its command line, exit status and the end of its output."""

    def __init__(self, command: str, status: int, output: str) -> None:
        super().__init__(f"`{command}` exited with {status}", f"it said:\n{output}")
        self.command = command
        self.status = status
        self.output = output
