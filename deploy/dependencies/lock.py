"""The lock file of the agent's dependencies, and what it says of each on Linux."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
RUN: Final = ROOT / "deploy/requirements/run.txt"

#: The versions of Python for which a marker is evaluated; 3.11 is the oldest one supported.
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")

_HASH: Final = "--hash="


class DependencyError(Exception):
    """A dependency does not fit the lock, or its licence is unknown; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One pinned dependency: canonical name, version, SHA-256 of each of its files in hex."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read(path: Path = RUN) -> tuple[Locked, ...]:
    """Return what the lock file pins for Linux, by name.

    Lines that no supported Python on Linux evaluates to true (`sys_platform == 'win32'`) are left
    out. Raises `DependencyError` on a line that is not an exact version with SHA-256 hashes.
    """
    found = [_locked(requirement, hashes) for requirement, hashes in _lines(path)]
    return tuple(sorted((one for one in found if one), key=lambda one: one.name))


def holds_on_linux(marker: Marker | None) -> bool:
    """Return whether an environment marker is true on Linux with any supported Python, no extra."""
    return marker is None or any(marker.evaluate(_linux(python)) for python in PYTHONS)


def _linux(python: str) -> dict[str, str]:
    described = {str(key): str(value) for key, value in default_environment().items()}
    return described | {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each requirement and its options; comments are dropped."""
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        requirement, *options = line.split(" --")
        if requirement.strip():
            yield requirement.strip(), [f"--{option.strip()}" for option in options]


def _locked(text: str, options: list[str]) -> Locked | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise DependencyError(f"the lock file has no requirement in {text!r}: {error}") from error
    pins = [pin for pin in requirement.specifier if pin.operator == "=="]
    hashes = [option.removeprefix(f"{_HASH}sha256:") for option in options]
    if len(pins) != 1 or not hashes or any(one.startswith("--") for one in hashes):
        raise DependencyError(
            f"the lock file has {text!r} without one exact version and SHA-256 hashes"
        )
    if not holds_on_linux(requirement.marker):
        return None
    name = canonicalize_name(requirement.name)
    return Locked(name, pins[0].version, tuple(sorted(hashes)))
