"""`make dependencies`: write the SBOM and the third-party licences that the wheel contains.

Builds of the wheel and of the image write them as well.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agent import __version__
from deploy.dependencies import licences, lock, sbom
from deploy.dependencies.lock import DependencyError

SBOM: Final = lock.ROOT / "deploy/dependencies/numawarden.cdx.json"
LICENCES: Final = lock.ROOT / "THIRD-PARTY-LICENSES.txt"
PROJECT: Final = lock.ROOT / "pyproject.toml"


def main() -> int:
    """Write both files; return the exit status."""
    try:
        write()
    except DependencyError as error:
        print(f"dependencies: {error}", file=sys.stderr)
        return 1
    return 0


def write() -> None:
    """Write both files from the lock and the installed packages; raises `DependencyError`."""
    licensed = licences.collect(lock.read(lock.GRPC))
    _put(SBOM, bill(licensed))
    _put(LICENCES, licences.render(licensed))


def _put(file: Path, text: str) -> None:
    # Several builds may run at a time: each finds a whole file, and all write the same.
    with NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as made:
        made.write(text)
    Path(made.name).chmod(0o644)
    Path(made.name).replace(file)


def bill(licensed: tuple[licences.Licensed, ...]) -> str:
    """Return the SBOM of the wheel."""
    always = {one.name for one in lock.read()}
    optional = {one.locked.name for one in licensed} - always
    return sbom.render(sbom.agent(__version__), direct(), licensed, optional=optional)


def direct() -> tuple[str, ...]:
    """Return the canonical names of what pyproject.toml names as dependencies, in extras too."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    stated = [*project["dependencies"], *(one for extra in extras for one in extra)]
    return tuple(sorted(canonicalize_name(Requirement(one).name) for one in stated))


if __name__ == "__main__":
    sys.exit(main())
