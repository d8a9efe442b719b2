"""Run the commands of the pages and compare, or write, what they print.

`python -m tests.docs` says what differs, with exit code 1 if anything does; with `--write` (or by
`make docs`) it is put into the pages. Names of pages confine it to these.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import PAGES


def main() -> int:
    """Compare or write the pages that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs")
    parser.add_argument("pages", nargs="*", choices=[[], *PAGES], metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="put the outputs into the pages")
    asked = parser.parse_args()
    differs = False
    for name in asked.pages or PAGES:
        page = PAGES[name]
        with TemporaryDirectory(prefix="numawarden-docs-") as folder:
            before, after = page.file.read_text(), page.rewritten(Path(folder))
        differs |= before != after
        sys.stdout.writelines(
            difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"{page.file.name} as it is",
                f"{page.file.name} as it should be",
            )
        )
        if asked.write:
            page.file.write_text(after)
    return int(differs and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
