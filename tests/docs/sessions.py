"""Pages whose commands are typed at the prompt of a playground."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tests.docs.consoles import shown_in, with_outputs

if TYPE_CHECKING:
    from types import TracebackType

_END: Final = "--- end of a command of the page ---"


class PlaygroundPage(NamedTuple):
    """A page that is one session in a playground, or one on each of several hosts.

    The word before the prompt is the option `--host` of the playground, nothing its default.
    """

    file: Path

    def printed(self, _folder: Path) -> list[str]:
        """Run every command of the page in its order, and return what each prints."""
        outputs: list[str] = []
        with ExitStack() as running:
            sessions: dict[str, Session] = {}
            for shown in shown_in(self.file.read_text()):
                if shown.host not in sessions:
                    sessions[shown.host] = running.enter_context(Session(shown.host))
                outputs.append(sessions[shown.host].run(shown.command))
        return outputs

    def rewritten(self, folder: Path) -> str:
        """Return the text of the page with what its commands print."""
        return with_outputs(self.file.read_text(), self.printed(folder))


class Session:
    """A shell in a playground, which is given one command after the other."""

    def __init__(self, host: str) -> None:
        self._options = ["--host", host] if host else []

    def __enter__(self) -> Self:
        program = str(Path(sys.executable).with_name("numawarden"))
        self._shell = subprocess.Popen(
            [program, "playground", *self._options, "--", "bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.communicate("exit\n")

    def run(self, command: str) -> str:
        """Return what a command prints, on whichever stream."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n%s\\n' '{_END}'\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.rstrip("\n") == _END:
                # The line feed before the mark ends an output that does not end with its own.
                return "".join(lines).removesuffix("\n")
            lines.append(line)
        raise EOFError(f"the playground ended in: {command}; {''.join(lines)}")
