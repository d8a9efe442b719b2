"""What container runtimes are configured with for NRI: files of containerd and of CRI-O.

containerd's file has versions 2 and 3, with NRI in the same tables; the files that it imports win
over it. CRI-O reads `crio.conf.d` after `crio.conf`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.tools.doctor.facts import HostFile

NRI: Final = "io.containerd.nri.v1.nri"
VALIDATOR: Final = "default_validator"
#: In containerd's file; version 3 writes the same with other quotes.
NRI_TABLE: Final = f"[plugins.'{NRI}']"

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_VERSION: Final = re.compile(
    r"(?:[0-9]+:)?v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", re.ASCII
)


class RuntimeSettings(Struct, frozen=True):
    """The table of NRI with the file of each entry, and why files cannot be read.

    `off_in` is the file that turns NRI off for good, `main` the file in which to change something.
    """

    entries: dict[str, tuple[Any, str]]
    unread: tuple[str, ...]
    main: str
    off_in: str = ""

    def text(self, name: str, default: str) -> tuple[str, str]:
        """Return a text with its file; the default where there is none."""
        value, file = self.entries.get(name, (default, self.main))
        return (value, file) if isinstance(value, str) else (default, self.main)

    def switch(self, name: str, *, default: bool) -> tuple[bool, str]:
        """Return true or false with its file; the default where it is neither."""
        value, file = self.entries.get(name, (default, self.main))
        return (value, file) if isinstance(value, bool) else (default, self.main)


def toml_of(file: HostFile) -> tuple[dict[str, Any], str]:
    """Return a TOML document, empty where there is none, and why it cannot be read, else ""."""
    if file.text is None:
        return {}, f"{file.path}: {file.problem}" if file.problem else ""
    try:
        return tomllib.loads(file.text), ""
    except (ValueError, RecursionError) as error:
        return {}, f"{file.path}: not TOML: {error}"


def containerd_settings(files: Iterable[HostFile], main: str) -> RuntimeSettings:
    """Return what containerd is configured with; the last of the files counts."""
    entries: dict[str, tuple[Any, str]] = {}
    unread: list[str] = []
    off_in = ""
    for file in files:
        document, problem = toml_of(file)
        if problem:
            unread.append(problem)
        disabled = document.get("disabled_plugins")
        if isinstance(disabled, list) and NRI in disabled:
            off_in = file.path
        nri = _table(_table(document, "plugins"), NRI)
        validator = _table(nri, VALIDATOR)
        entries |= {name: (value, file.path) for name, value in nri.items() if name != VALIDATOR}
        entries |= {f"{VALIDATOR}.{name}": (value, file.path) for name, value in validator.items()}
    return RuntimeSettings(entries, tuple(unread), main, off_in)


def crio_settings(files: Iterable[HostFile], main: str) -> RuntimeSettings:
    """Return what CRI-O is configured with; the last of the files counts."""
    entries: dict[str, tuple[Any, str]] = {}
    unread: list[str] = []
    for file in files:
        document, problem = toml_of(file)
        if problem:
            unread.append(problem)
        nri = _table(_table(document, "crio"), "nri")
        entries |= {name: (value, file.path) for name, value in nri.items()}
    return RuntimeSettings(entries, tuple(unread), main)


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it (`1m30s`), None for another text."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def version_of(text: str) -> tuple[int, int, int] | None:
    """Return a version's numbers: of `v2.1.9`, `1.7.24~ds1-6`, `1:2.2`; None for another text."""
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))
