"""The page of the configuration, from the declarations of its keys; the site is built with it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from agent.config.document import yaml_text
from agent.config.model import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.keys import Key

WIDTH: Final = 100
#: The keys that say what the document is; what they default to is of no interest.
MARKERS: Final = ("apiVersion", "kind")
#: The release whose keys do not say since when they exist.
_FIRST: Final = "0.1.0"

#: Kinds that a key shows by its default, or its name.
_PATHS: Final = ("absolute path", 'absolute path, or ""')


_PAGE_BEGINS: Final = """\
# Configuration

One YAML or JSON file, `/etc/numawarden/config.yaml` in the unit. Keys outside of `agent` have the
names, values and defaults of the kubelet (`KubeletConfiguration`). A key that is left out, or has
no value, has its default; paths are absolute. All mistakes of a file are reported at once.

    numawarden config check FILE        # is the file right, on this host? what follows from it?
    numawarden config show FILE         # every key with its value, also of those left out
    numawarden config show --defaults   # every key with its default
    numawarden config schema            # the JSON schema (draft 2020-12) of a file, for editors

`--set KEY=VALUE` lays a single setting over the file, such as `--set agent.metrics.port=9465`. A
commented example is [deploy/config.yaml](../deploy/config.yaml).
"""


def configuration_page() -> str:
    """Return the page with every key."""
    parts = [_PAGE_BEGINS]
    for key in Config.keys:
        parts += [f"## {key.title}\n"] if key.title else []
        parts += _described(key, key.name)
    return "\n".join(parts)


def written_default(key: Key) -> str:
    """Return the default of a key as a file of the configuration has it."""
    return yaml_text(key.written_default, one_line=True)


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return the lines of a text; the first and the others may begin with something."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _described(key: Key, path: str) -> Iterator[str]:
    """Yield the paragraphs of a key, and those of the keys in it."""
    yield f"### `{path}`\n"
    yield _markdown(key.help)
    listing = key.values if key.inner is not None else {**key.values, **key.kind.parts}
    if listing:
        yield "".join(
            f"{line}\n"
            for value, meaning in listing.items()
            for line in wrapped(_escaped(meaning), WIDTH, f"- `{value}`: ", "  ")
        )
    if key.example:
        yield f"```yaml\n{key.name}:\n{textwrap.indent(key.example, '  ')}```\n"
    listed = ", ".join(key.values)
    obvious = (f"one of {listed}", f"list of {listed}", "true or false", "mapping", *_PATHS)
    facts = "" if key.kind.words in obvious else f"Type: {_escaped(key.kind.words)}."
    if key.name not in MARKERS and key.inner is None:
        facts = f"{facts} Default: `{written_default(key)}`.".lstrip()
    if key.since != _FIRST:
        facts += f" Since: {key.since}."
    yield from [_markdown(facts, escaped=True)] if facts else []
    if key.inner is not None:
        for inner in key.inner.keys:
            yield from _described(inner, f"{path}.{inner.name}")


def _markdown(text: str, *, escaped: bool = False) -> str:
    return "\n".join(wrapped(text if escaped else _escaped(text), WIDTH)) + "\n"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")
