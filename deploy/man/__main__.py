"""`make man`: write the manual pages of all commands into a directory."""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from deploy.dependencies.lock import ROOT
from deploy.man.pages import write


def main() -> int:
    """Write the pages; return the exit status."""
    parser = argparse.ArgumentParser(prog="make man", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist/man", help="directory")
    options = parser.parse_args()
    # A build that states its time (https://reproducible-builds.org) gets the same pages again.
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    pages = write(options.output, datetime.fromtimestamp(epoch, UTC).date())
    print(f"{options.output}: {len(pages)} pages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
