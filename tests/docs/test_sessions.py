"""A page that is a session in a playground: what its commands print is what stands in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.sessions import PlaygroundPage, Session

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """\
```console
$ pod=mixed; printf 'no line feed'
$ cat pods/$pod.yaml | head -n 1 >&2; cat
$ numawarden list | wc -l
```
"""


def test_commands_share_a_shell_and_print_on_either_stream(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second, third = PlaygroundPage(page).printed(tmp_path)
    assert first == "no line feed"
    assert second.startswith("# A budget for the pod")
    assert third.strip() == "1"  # "no pods"


def test_a_session_that_ends_in_a_command_says_which() -> None:
    with Session("") as session, pytest.raises(EOFError, match="ended in: exit 3"):
        session.run("exit 3")
