"""The pages whose commands are run, and on which hosts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.docs.consoles import changed_settings, settings_in, shown_in, with_outputs
from tests.docs.hosts import ROOT, PageHost
from tests.docs.sessions import PlaygroundPage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Page(NamedTuple):
    """A page and its hosts.

    `hosts`: by the word before the prompt, how the host's configuration differs from the one on the
    page. `fresh`: every block begins on empty hosts.
    """

    file: Path
    hosts: Mapping[str, Mapping[str, str]]
    fresh: bool

    def printed(self, folder: Path) -> list[str]:
        """Run every command of the page in its order, and return what each prints."""
        text = self.file.read_text()
        settings = settings_in(text)
        outputs: list[str] = []
        block = -1
        with ExitStack() as running:
            hosts: dict[str, PageHost] = {}
            for shown in shown_in(text):
                if shown.host not in hosts:
                    own = changed_settings(settings, self.hosts[shown.host].items())
                    host = PageHost(folder / f"host-{len(hosts)}", own)
                    hosts[shown.host] = running.enter_context(host)
                if self.fresh and shown.block != block:
                    for host in hosts.values():
                        host.empty()
                block = shown.block
                outputs.append(hosts[shown.host].run(shown.command))
        return outputs

    def rewritten(self, folder: Path) -> str:
        """Return the text of the page with what its commands print."""
        return with_outputs(self.file.read_text(), self.printed(folder))


PAGES: Final[Mapping[str, Page | PlaygroundPage]] = {
    "scopes": Page(
        ROOT / "docs/scopes.md",
        {
            "pod-scope": {},
            "container-scope": {"topologyManagerScope": "container"},
        },
        fresh=True,
    ),
    "rollout": Page(ROOT / "docs/rollout.md", {"": {}}, fresh=False),
    "start": PlaygroundPage(ROOT / "README.md"),
    "first-hour": PlaygroundPage(ROOT / "docs/tutorials/first-hour.md"),
    "moving-a-node": PlaygroundPage(ROOT / "docs/moving-a-node.md"),
    "postgresql": PlaygroundPage(ROOT / "docs/howto/postgresql.md"),
}
