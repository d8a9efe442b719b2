"""Unit names: their rules, and where a slice's cgroup is (systemd.unit(5))."""

from __future__ import annotations

import re
from typing import Final

from systemd.errors import UnitNameError

UNIT_NAME_MAX: Final = 255
_TYPES: Final = frozenset(
    {
        "automount",
        "device",
        "mount",
        "path",
        "scope",
        "service",
        "slice",
        "socket",
        "swap",
        "target",
        "timer",
    }
)
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_ROOT_SLICE: Final = "-.slice"
#: Names that would collide with the kernel's files in a cgroup's directory.
_KERNEL_FILES: Final = frozenset({"tasks", "notify_on_release", "release_agent"})
_KERNEL_PREFIXES: Final = (
    "cgroup.", "cpu.", "cpuset.", "cpuacct.", "io.", "blkio.", "memory.", "devices.", "pids.",
)  # fmt: skip


def check_unit(name: str, kind: str | None = None) -> str:
    """Return `name` if it is a valid unit name (of type `kind`), else raise `UnitNameError`."""
    if len(name) > UNIT_NAME_MAX:
        raise UnitNameError(name[:40] + "…", f"it is longer than {UNIT_NAME_MAX} characters")
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix not in _TYPES:
        raise UnitNameError(name, "it has no unit type, such as .slice or .scope")
    if not stem or not _CHARACTERS.fullmatch(stem) or stem.startswith("@"):
        raise UnitNameError(name, r"use letters, digits and : _ . \ - @ only")
    if kind is not None and suffix != kind:
        raise UnitNameError(name, f"a .{kind} is needed")
    return name


def slice_path(name: str) -> str:
    """Return the cgroup path of a slice, relative to the root: `a-b.slice` is `a.slice/a-b.slice`.

    Raises `UnitNameError` for a name that systemd rejects: another unit type, a leading or
    trailing `-`, or `--`. The root slice `-.slice` is `""`.
    """
    check_unit(name, "slice")
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    if not all(parts):
        raise UnitNameError(name, "a slice's name has single dashes, between parts")
    names = ("-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))
    return "/".join(cgroup_component(each) for each in names)


def cgroup_component(unit: str) -> str:
    """Return the directory's name of a unit: itself, or with `_` before it where it would collide.

    systemd does so for names that look like the kernel's files or begin with `_` or `.`.
    """
    collides = unit in _KERNEL_FILES or unit.startswith(("_", ".", *_KERNEL_PREFIXES))
    return f"_{unit}" if collides else unit
