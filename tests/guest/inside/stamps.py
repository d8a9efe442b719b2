"""The guest's uptime, written on its console so that the host can compare it with its own clock."""

from __future__ import annotations

import os
import threading
import time
from itertools import chain, repeat
from typing import Final

#: Seconds between stamps: often at first, for the host is to judge the boot within seconds, and
#: then for as long as the scenario runs, which also shows that the guest runs. Each is an interrupt
#: of the console, which `isolation` counts.
PAUSES: Final = (0.25,) * 120
LATER: Final = 1.0


def begin() -> None:
    """Write stamps from now until the process ends."""
    threading.Thread(target=_write, name="stamps", daemon=True).start()


def _write() -> None:
    for pause in chain(PAUSES, repeat(LATER)):
        # One write, so that no other thread's line comes in between; the clock of /proc/uptime.
        os.write(1, b"guest-job: clock uptime=%.3f\n" % time.clock_gettime(time.CLOCK_BOOTTIME))
        time.sleep(pause)
