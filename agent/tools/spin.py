"""The probe of `numawarden interference` where there is no compiler: see `spin.c`, its twin.

A script of its own, which imports nothing that the interpreter has not loaded: what it runs besides
the loop would be measured. Garbage is not collected; the interpreter's own work stays in the gaps.
"""

import gc
import os
import sys
import time

GAP_NS = 10_000


def main(procs: str, cpu: int, seconds: float) -> str:
    """Enter a cgroup and a CPU, spin, and return the longest gap, the shortest, and how many."""
    if procs:
        with open(procs, "w", encoding="ascii") as file:  # noqa: PTH123  # pathlib would be imported
            file.write("0\n")
    os.sched_setaffinity(0, {cpu})
    gc.disable()
    clock = time.monotonic_ns
    longest, shortest, gaps = 0, 1 << 62, 0
    before = clock()
    end = before + int(seconds * 1e9)
    while before < end:
        after = clock()
        gap = after - before
        before = after
        if gap > GAP_NS:
            gaps += 1
        longest = max(longest, gap)
        if gap:
            shortest = min(shortest, gap)
    return f"{longest} {shortest} {gaps}\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
    except OSError as error:
        sys.exit(f"{error.filename or 'sched_setaffinity'}: {error.strerror}")
