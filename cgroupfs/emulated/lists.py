"""Parsing what is written to cgroup files, with the kernel's errors for what it rejects."""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from typing import Final

from cgroupfs.state import MAX_PERIOD_US, MAX_QUOTA_US, MIN_PERIOD_US, MIN_QUOTA_US
from sysfs.mask import EMPTY, Mask

#: CONFIG_NODES_SHIFT=10: what a list of nodes may name before it is out of range.
MAX_NODES: Final = 1024
_REGION: Final = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<used>\d+)/(?P<group>\d+))?)?")
_BETWEEN: Final = re.compile(r"[\s,]+")
_LEADING_NUMBER: Final = re.compile(r"\+?(\d+)")


def reject(number: int) -> OSError:
    """Return the `OSError` of an errno."""
    return OSError(number, os.strerror(number))


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
        raise reject(errno.EINVAL)
    first, last = int(match["first"]), int(match["last"] or match["first"])
    used, group = int(match["used"] or 1), int(match["group"] or 1)
    if first > last or group == 0 or used > group:
        raise reject(errno.EINVAL)
    if last >= limit:
        raise reject(errno.ERANGE)
    return Mask.from_ids(n for n in range(first, last + 1) if (n - first) % group < used)


def parse_bandwidth(text: str, period: int) -> tuple[int | None, int]:
    """Parse `QUOTA [PERIOD]` of `cpu.max`; the period stays `period` when it is left out.

    Raises `OSError` EINVAL outside of the bounds in `cgroupfs.state`.
    """
    words = text.split()
    if not words:
        raise reject(errno.EINVAL)
    number = _LEADING_NUMBER.match(words[0])
    if number is None and words[0] != "max":
        raise reject(errno.EINVAL)
    quota = None if number is None else int(number[1])
    second = _LEADING_NUMBER.match(words[1]) if len(words) > 1 else None
    if second is not None:
        period = int(second[1])
    if quota is not None and not MIN_QUOTA_US <= quota <= MAX_QUOTA_US:
        raise reject(errno.EINVAL)
    if not MIN_PERIOD_US <= period <= MAX_PERIOD_US:
        raise reject(errno.EINVAL)
    return quota, period


def parse_number(text: str, low: int, high: int, outside: int) -> int:
    """Parse a decimal number; EINVAL for anything else, errno `outside` out of the bounds."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise reject(errno.EINVAL)
    number = int(stripped)
    if not low <= number <= high:
        raise reject(outside)
    return number
