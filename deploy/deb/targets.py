"""The distributions that there is a package for, and how a package of a commit is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.building import Commit

ARCHITECTURE: Final = "amd64"


@dataclass(frozen=True, slots=True)
class Target:
    """A release of a distribution: its name here, its codename, the version of its Python."""

    name: str
    codename: str
    python: str

    @property
    def suffix(self) -> str:
        """The end of package versions: packages of older releases of a distribution sort first."""
        return self.name.replace("-", ".")


TARGETS: Final = {
    target.name: target
    for target in (
        Target("debian-12", "bookworm", "3.11"),
        Target("debian-13", "trixie", "3.13"),
        Target("ubuntu-24.04", "noble", "3.12"),
    )
}


def chosen(names: Sequence[str], os_release: str) -> list[Target]:
    """Return the named targets; without names the one of this host; "all" are all.

    `os_release` is the text of /etc/os-release. Raises `BuildError` on a name that is not in
    `TARGETS`.
    """
    known = ", ".join(TARGETS)
    if list(names) == ["all"]:
        return list(TARGETS.values())
    fields = dict(re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', os_release))
    host = f"{fields.get('ID', '')}-{fields.get('VERSION_ID', '')}"
    if not names and host not in TARGETS:
        raise BuildError(
            f"there is no package for this host ({host}); name what to build it for:"
            f" make deb TARGETS=all, or one of {known}"
        )
    for name in names:
        if name not in TARGETS:
            raise BuildError(f"there is no package for {name!r}; known are: {known}")
    return [TARGETS[name] for name in names or [host]]


def version(agent: str, commit: Commit, target: Target) -> str:
    """Return the version of a package (Debian Policy, 5.6.12).

    The release's where the commit has its tag and no file differs, else one that is older than the
    release and newer than the packages of older commits.
    """
    upstream = agent
    if commit.modified or not commit.tag:
        time = datetime.fromtimestamp(commit.epoch, UTC).strftime("%Y%m%d%H%M%S")
        changed = ".modified" if commit.modified else ""
        upstream = f"{agent}~git{time}.{commit.name[:8]}{changed}"
    return f"{upstream}-1~{target.suffix}"
