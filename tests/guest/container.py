"""The root of the container image for a guest: the image's recipe, with the guest's environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError
from deploy.dependencies import __main__ as dependencies
from deploy.image import debian, tree
from tests.guest import cache, host, image, wheel
from tests.guest.errors import GuestError

if TYPE_CHECKING:
    from tests.guest.image import Python

#: What the Debian part of the root is made from.
RECIPE: Final = ("packages", "removed", "debian.py")
#: What `tree.lay_out` makes the rest from, below the checkout.
LAID_OUT: Final = (
    "deploy/config.yaml",
    "deploy/image/health.py",
    "deploy/image/tree.py",
    "THIRD-PARTY-LICENSES.txt",
)


def root(store: cache.Cache, python: Python, wheels: wheel.Wheels) -> Path:
    """Return a disk (ext4) that holds the root of the container image.

    The environment in it is the one that the other scenarios get. Raises `GuestError`.
    """
    recipe = cache.key_of_files(debian.HERE, [debian.HERE / name for name in RECIPE])
    if not store.has("container-debian", recipe):
        host.require_root("making the root of the container image")
        host.provide(host.BUILD_NEEDS)
    dependencies.write()
    system = store.entry("container-debian", recipe, _bootstrap)
    files = cache.key_of_files(wheel.PROJECT, [wheel.PROJECT / name for name in LAID_OUT])
    parts = (recipe, files, wheels.agent.name, wheels.dependencies.name)
    key = cache.key_of(*(part.encode() for part in parts), Path(__file__).read_bytes())

    def make(directory: Path) -> None:
        whole, disk = directory / "tree", directory / wheel.DISK
        shutil.copytree(system / "tree", whole, symlinks=True)
        wheel.install(python, wheels, whole / tree.PREFIX)
        tree.lay_out(whole)
        with disk.open("wb") as handle:
            handle.truncate(wheel.DISK_SIZE)
        image.write_ext4(disk, whole, wheel.DISK_SIZE)
        shutil.rmtree(whole)

    return store.entry("container-root", key, make) / wheel.DISK


def _bootstrap(directory: Path) -> None:
    made = directory / "tree"
    try:
        debian.bootstrap(made, host.debian_sources(debian.SUITE), epoch=0)
    except BuildError as error:
        raise GuestError(str(error), "see docs/image.md") from error
    (made / "root").chmod(0o755)  # or only root could copy the tree
