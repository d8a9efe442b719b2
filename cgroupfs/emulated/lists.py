"""Parsing lists of CPUs and nodes, with the kernel's errors for what it rejects."""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from typing import Final

from cgroupfs.errors import rejection
from sysfs.mask import EMPTY, Mask

#: CONFIG_NODES_SHIFT=10: what a list of nodes may name before it is out of range.
MAX_NODES: Final = 1024
_REGION: Final = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<used>\d+)/(?P<group>\d+))?)?")
_BETWEEN: Final = re.compile(r"[\s,]+")


@lru_cache(maxsize=256)
def parse_list(text: str, limit: int) -> Mask:
    """Parse a list of ids below `limit` as bitmap_parselist() does.

    Raises `OSError`: EINVAL for a malformed list, ERANGE for an id of `limit` or more.
    """
    found = EMPTY
    for region in _BETWEEN.split(text.strip()):
        if region:
            found |= _parse_region(region, limit)
    return found


def _parse_region(region: str, limit: int) -> Mask:
    if region == "all":
        return Mask((1 << limit) - 1)
    match = _REGION.fullmatch(region.replace("N", str(limit - 1)))
    if match is None:
        raise rejection(errno.EINVAL)
    first, last = int(match["first"]), int(match["last"] or match["first"])
    used, group = int(match["used"] or 1), int(match["group"] or 1)
    if first > last or group == 0 or used > group:
        raise rejection(errno.EINVAL)
    if last >= limit:
        raise rejection(errno.ERANGE)
    return Mask.from_ids(n for n in range(first, last + 1) if (n - first) % group < used)
