"""`make image`: build the container image and its SBOM into a directory."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

from agent import __version__
from deploy import building
from deploy.building import BuildError
from deploy.dependencies import licences, lock
from deploy.dependencies.lock import DependencyError
from deploy.image import archive, bill, debian, tree


def main() -> int:
    """Build; return the exit status."""
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--output", type=Path, default=lock.ROOT / "dist", help="directory")
    output: Path = parser.parse_args().output
    try:
        file = build(output)
    except (DependencyError, BuildError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(f"{file}: {file.stat().st_size / 1e6:.0f} MB; load it with: podman load -i {file}")
    return 0


def build(output: Path) -> Path:
    """Build image and SBOM from this checkout and return the image's file. Raises `BuildError`."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        raise BuildError("the image is built by root on x86_64: sudo make image")
    os.umask(0o022)  # the modes in the image are not the builder's choice
    commit = building.commit(__version__)
    epoch = commit.epoch
    name = f"numawarden-{__version__}-image"
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="numawarden-image-") as scratch:
        wheel = building.wheel(Path(scratch), epoch)
        root = Path(scratch) / "root"
        packages = debian.bootstrap(root, debian.sources(debian.SUITE), epoch)
        tree.install(root, wheel, epoch)
        tree.lay_out(root)
        text = bill.render(packages, licences.collect(lock.read(tree.LOCK)), tree.installed(root))
        for file in (root / tree.SBOM, output / f"{name}.cdx.json"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        archive.write(output / f"{name}.tar", root, __version__, commit.revision, epoch)
    return output / f"{name}.tar"


if __name__ == "__main__":
    sys.exit(main())
