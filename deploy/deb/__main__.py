"""`make deb`: build the Debian package and its SBOM into a directory."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packageurl import PackageURL

from agent import __version__
from deploy import building
from deploy.building import BuildError
from deploy.deb import archive, environment, targets, tree
from deploy.dependencies import licences, lock, sbom
from deploy.dependencies.__main__ import direct
from deploy.dependencies.lock import DependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.building import Commit
    from deploy.deb.targets import Target


def main(argv: Sequence[str] | None = None) -> int:
    """Build; return the exit status."""
    parser = argparse.ArgumentParser(prog="make deb", description=__doc__)
    known = ", ".join(targets.TARGETS)
    parser.add_argument(
        "target", nargs="*", help=f"what to build for: {known}, or all; default: this host"
    )
    parser.add_argument("--output", type=Path, default=lock.ROOT / "dist", help="directory")
    parser.add_argument("--upstream-version", default=__version__, help="default: the agent's")
    parser.add_argument("--wheels", type=Path, help="directory of the locked wheels; no download")
    options = parser.parse_args(argv)
    try:
        os.umask(0o022)  # the modes in the package are not the builder's choice
        release = Path("/etc/os-release").read_text(encoding="utf-8")
        commit = building.commit(options.upstream_version)
        for target in targets.chosen(options.target, release):
            version = targets.version(options.upstream_version, commit, target)
            file = build(target, version, commit, options.output, options.wheels)
            print(f"{file}: {file.stat().st_size / 1e6:.1f} MB for {target.name}")
    except (DependencyError, BuildError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


def build(target: Target, version: str, commit: Commit, output: Path, wheels: Path | None) -> Path:
    """Build package and SBOM of this checkout into a directory and return the package's file.

    It replaces those of the same target there. Without a directory of wheels they are downloaded.
    Raises `BuildError` and `DependencyError`.
    """
    python = environment.interpreter(target)
    locked = lock.read(lock.GRPC, [target.python])
    epoch = commit.epoch
    with tempfile.TemporaryDirectory(prefix="numawarden-deb-") as scratch:
        directory = Path(scratch)
        wheel = building.wheel(directory / "agent", epoch)
        if wheels is None:
            wheels = directory / "wheels"
            environment.download(locked, target, wheels)
        root = directory / "root"
        environment.install(root, wheel, locked, wheels, target)
        environment.compile_all(root, python, target, epoch)
        tree.lay_out(root)
        tree.manuals(root, epoch)
        tree.changelogs(root, version, target, epoch, archive.MAINTAINER)
        text = bill(root, version, target)
        output.mkdir(parents=True, exist_ok=True)
        archive.remove_built(output, target)
        for file in (root / tree.SBOM, output / f"{tree.NAME}_{version}.cdx.json"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        tree.settle(root, epoch)
        return archive.write(root, version, target, epoch, output)


def bill(root: Path, version: str, target: Target) -> str:
    """Return the SBOM of what is installed below a root.

    Raises `DependencyError` where something is installed that is not locked.
    """
    installed = lock.installed(root / environment.site_packages(target))
    locked = lock.read(lock.GRPC)
    lock.require_locked(installed, locked, __version__)
    inside = [one for one in licences.collect(locked) if one.locked.name in installed]
    purl = PackageURL(
        "deb",
        name=tree.NAME,
        version=version,
        qualifiers={"arch": targets.ARCHITECTURE, "distro": target.name},
    )
    return sbom.render(sbom.agent(version, purl), direct(), inside)


if __name__ == "__main__":
    sys.exit(main())
