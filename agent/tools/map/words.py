"""Words of the map: numbers with their noun, lists of ids, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sysfs.mask import Mask

#: Characters of a list of ids that is not shortened.
_LONGEST_LIST: Final = 44
_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 core`, `2 cores`, `2 L3`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun; `L3` has none."""
    return noun if noun == "L3" else f"{noun}s"


def named_ids(noun: str, ids: Mask) -> str:
    """Return a list of ids after its noun: `node 0`, `CPUs 0-3`."""
    return f"{noun if len(ids) == 1 else plural(noun)} {ids}"


def id_list(ids: Mask, noun: str = "CPU") -> str:
    """Return a list of ids; of a long one the beginning, the end and the number of ids."""
    text = str(ids)
    if len(text) <= _LONGEST_LIST:
        return text
    runs = text.split(",")
    return f"{','.join(runs[:3])},...,{runs[-1]} ({counted(len(ids), noun)})"


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit that it reaches: `15.6 GiB`, `2 MiB`."""
    for unit, size in _UNITS:
        if size_bytes >= size:
            whole, rest = divmod(size_bytes, size)
            return f"{size_bytes / size:.1f} {unit}" if rest else f"{whole} {unit}"
    return f"{size_bytes} B"
