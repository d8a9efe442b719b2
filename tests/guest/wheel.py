"""The agent as it is shipped: its wheel, and the environment that pip makes of it in a guest."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.guest import cache, host, image

if TYPE_CHECKING:
    from tests.guest.image import Python

PROJECT: Final = Path(__file__).resolve().parents[2]
#: What the agent runs with in guests, with the extra for device plugins and podresources.
LOCK: Final = PROJECT / "deploy/requirements/grpc.txt"
PACKAGES: Final = ("agent", "cgroupfs", "sysfs", "systemd")
#: What else the wheel is built from.
BUILD_FILES: Final = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "deploy/__init__.py",
    "deploy/requirements/run.txt",
    "deploy/requirements/grpc.txt",
    *(
        f"deploy/dependencies/{file.name}"
        for file in (PROJECT / "deploy/dependencies").glob("*.py")
    ),
)

#: Where the agent's environment lies in the guest, as in the installation instructions.
PREFIX: Final = Path("/opt/numawarden")

#: The environment's disk in its cache entry, and its size in bytes; the file is sparse.
DISK: Final = "agent.img"
DISK_SIZE: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Wheels:
    """A directory with the agent's wheel and one with the wheels of its locked dependencies."""

    agent: Path
    dependencies: Path

    @property
    def file(self) -> Path:
        """The agent's wheel."""
        return next(self.agent.glob("*.whl"))


def provide(store: cache.Cache, python: Python) -> Wheels:
    """Return the wheel of the present checkout and its dependencies for the guest's Python."""
    lock = cache.key_of(LOCK.read_bytes(), python.pip.parent.name.encode())
    kind = f"wheels-{python.name}"
    dependencies = store.entry(kind, lock, lambda where: _download(python, where))
    agent = store.entry("agent", cache.key_of_files(PROJECT, sources()), _build)
    return Wheels(agent, dependencies)


def environment(store: cache.Cache, python: Python, wheels: Wheels) -> Path:
    """Return a disk (ext4) that, mounted at `PREFIX`, is the virtual environment with the agent.

    Installed by the guest's own Python from the wheels, nothing from the checkout, and compiled.
    """
    key = cache.key_of(
        wheels.agent.name.encode(), wheels.dependencies.name.encode(), Path(__file__).read_bytes()
    )
    kind = f"environment-{python.name}"
    return store.entry(kind, key, lambda where: _make(python, wheels, where)) / DISK


def sources() -> list[Path]:
    """Return the files of the checkout that its wheel is built from."""
    files = [PROJECT / name for name in BUILD_FILES]
    for package in PACKAGES:
        files += [
            path
            for path in (PROJECT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return files


def _build(directory: Path) -> None:
    """Build the wheel from a copy of the sources, so that the checkout gets no build files."""
    source = directory / "source"
    source.mkdir()
    for name in BUILD_FILES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, source / name)
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / package, source / package, ignore=ignored)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    host.run([*build, "--outdir", directory, source])
    shutil.rmtree(source)


def _download(python: Python, directory: Path) -> None:
    python.run(
        *(python.pip, "download", "--quiet", "--only-binary=:all:"),
        *("--require-hashes", "--requirement", LOCK, "--dest", directory),
    )


def _make(python: Python, wheels: Wheels, directory: Path) -> None:
    tree, disk = directory / "tree", directory / DISK
    install(python, wheels, tree)
    with disk.open("wb") as handle:
        handle.truncate(DISK_SIZE)
    image.write_ext4(disk, tree, DISK_SIZE)
    shutil.rmtree(tree)


def install(python: Python, wheels: Wheels, root: Path) -> None:
    """Make an empty directory what `PREFIX` is once the agent is installed from the wheels."""
    site = root / f"lib/{python.name}/site-packages"
    offline = ("--no-index", "--find-links", wheels.dependencies, "--only-binary=:all:")
    quiet = ("--quiet", "--no-compile", "--root-user-action=ignore")
    into = (python.pip, "install", *quiet, *offline, "--target", site)
    python.run(*into, "--require-hashes", "--requirement", LOCK)
    shutil.rmtree(site / "bin")  # of the dependencies; pip would not add to it
    python.run(*into, "--no-deps", wheels.file)
    _make_virtual(root, site / "bin")
    where = ("-s", root, "-p", PREFIX)
    python.run("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *where, site)


def _make_virtual(root: Path, installed: Path) -> None:
    """Add what makes the tree the virtual environment `python3 -m venv PREFIX` would make.

    `installed` is the directory that pip put the agent's program in.
    """
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    programs = root / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to("/usr/bin/python3")
    shutil.copy2(installed / "numawarden", programs)
    shutil.rmtree(installed)
    script = programs / "numawarden"
    _, _, body = script.read_text().partition("\n")
    script.write_text(f"#!{PREFIX}/bin/python3\n{body}")
