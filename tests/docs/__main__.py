"""Run the commands of the pages and compare, or write, what they print; and the reference.

`python -m tests.docs` says what differs, with exit code 1 if anything does; with `--write` (or by
`make docs`) it is put into the pages. Names of pages confine it to these.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.docs.pages import PAGES
from tests.docs.reference import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> int:
    """Compare or write the pages that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs")
    known = [*REFERENCES, *PAGES]
    parser.add_argument("pages", nargs="*", choices=[[], *known], metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="put the outputs into the pages")
    asked = parser.parse_args()
    differs = False
    for file, before, after in _texts(asked.pages or known):
        differs |= before != after
        sys.stdout.writelines(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"{file.name} as it is",
                f"{file.name} as it should be",
            )
        )
        if asked.write:
            file.write_text(after)
    return int(differs and not asked.write)


def _texts(names: list[str]) -> Iterator[tuple[Path, str, str]]:
    """Yield each file with its text as it is and as it should be."""
    for name in names:
        if name in REFERENCES:
            file, written = REFERENCES[name]
            yield file, file.read_text() if file.exists() else "", written()
        else:
            page = PAGES[name]
            with TemporaryDirectory(prefix="numawarden-docs-") as folder:
                yield page.file, page.file.read_text(), page.rewritten(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
