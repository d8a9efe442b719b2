"""`python3 -m tests.guest.inside SCENARIO`: run a scenario in the guest and record its checks."""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING

from tests.guest.inside import stamps
from tests.guest.inside.checks import Stopped
from tests.guest.inside.guest import Guest
from tests.guest.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable


def main(name: str) -> int:
    """Run one scenario; 0 when all of its checks passed."""
    stamps.begin()
    guest = Guest()
    guest.work.mkdir(parents=True)
    started = time.monotonic()
    error = _run(guest, name)
    record = {
        "scenario": name,
        "seconds": round(time.monotonic() - started, 1),
        "error": error,
        "checks": [asdict(check) for check in guest.checks.done],
    }
    (guest.out / "results.json").write_text(json.dumps(record, indent=1))
    return 1 if error or guest.checks.failed or not guest.checks.done else 0


def _run(guest: Guest, name: str) -> str:
    """Run a scenario and collect its logs; return why it stopped early, or nothing."""
    stopped = _step(lambda: _load(name)(guest))
    unfinished = _step(guest.finish)
    return stopped or unfinished


def _step(step: Callable[[], None]) -> str:
    try:
        step()
    except Stopped as stopped:
        return f"without {stopped} the other checks are skipped"
    except Exception as unexpected:  # noqa: BLE001 - whatever it is, it is the verdict
        traceback.print_exc()
        return f"{type(unexpected).__name__}: {unexpected}"
    return ""


def _load(name: str) -> Callable[[Guest], None]:
    run: Callable[[Guest], None] = importlib.import_module(SCENARIOS[name].module).run
    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
