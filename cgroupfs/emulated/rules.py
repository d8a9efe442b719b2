"""What kernels do differently: one row a version, and nothing else asks for a version.

A kernel has the rules of the newest row that is not newer than it. `tests/cgroupfs/contract.py`
has both answers of each rule, and runs against kernels of several rows.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct


class Rules(Struct, frozen=True):
    """How a kernel answers where versions differ; the defaults are those of Linux 6.12."""

    #: A set of CPUs or nodes is cleared while processes use it; else that is rejected (ENOSPC).
    clears_used_sets: bool = False
    #: A partition stays as it is when a cgroup beside lists its CPUs, and one without exclusive
    #: CPUs has what the partitions beside leave of its list; else all of them become invalid.
    keeps_partitions: bool = False
    #: A `root` partition has no CPU that `isolcpus=` isolates, an `isolated` one may; else no
    #: partition below another or the root has one, any other may.
    isolates_isolcpus: bool = False


LINUX_6_12: Final = Rules()
#: The pull request "cgroup: Changes for v6.20", as 7.0 was called then; seen on 7.2.
LINUX_7_0: Final = Rules(clears_used_sets=True, keeps_partitions=True, isolates_isolcpus=True)

_ROWS: Final = {(6, 12): LINUX_6_12, (7, 0): LINUX_7_0}


def rules_of(release: str) -> Rules:
    """Return the rules of a kernel by its release (`uname -r`); an older one has those of 6.12."""
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return next((_ROWS[row] for row in sorted(_ROWS, reverse=True) if row <= version), LINUX_6_12)
