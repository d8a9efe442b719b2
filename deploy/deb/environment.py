"""The agent's environment in a package: locked wheels, installed and compiled for one Python."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError, run
from deploy.dependencies import lock
from deploy.image.tree import PLATFORMS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploy.deb.targets import Target
    from deploy.dependencies.lock import Locked

#: Isolated (-I): neither the user's packages nor PYTHONPATH may reach what root calls.
COMMAND: Final = f"""\
#!/{PREFIX}/bin/python3 -I
from agent.cli.main import main

main()
"""
SETTINGS: Final = "home = /usr/bin\ninclude-system-site-packages = false\n"

_PIP: Final = (sys.executable, "-m", "pip")
_QUIET: Final = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")


def site_packages(target: Target) -> str:
    """Return where the target's Python looks for the environment's packages, below the root."""
    return f"{PREFIX}/lib/python{target.python}/site-packages"


def interpreter(target: Target) -> Path:
    """Return a Python of the target's version on this host: it compiles what is installed.

    Raises `BuildError` where none is on the search path.
    """
    name = f"python{target.python}"
    found = shutil.which(name)
    if found is None:
        raise BuildError(
            f"the package for {target.name} is compiled by {name}, which is not on the search path;"
            f" install it, or build on {target.name}"
        )
    version = run([found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    if version != target.python:
        raise BuildError(f"{found} is Python {version}; {target.name} needs {target.python}")
    return Path(found)


def download(locked: Iterable[Locked], target: Target, wheels: Path) -> None:
    """Download the locked wheels for the target's Python into a directory; needs the index.

    Every file has to have a hash of the lock. Raises `BuildError`.
    """
    requirements = wheels.with_suffix(".txt")
    requirements.write_text("".join(map(_requirement, locked)))
    run([*_PIP, "download", *_QUIET, *_tags(target), "-r", requirements, "--dest", wheels])


def install(
    root: Path, wheel: Path, locked: Iterable[Locked], wheels: Path, target: Target
) -> None:
    """Make the environment below a root from the agent's wheel and downloaded wheels, offline.

    The agent's wheel is pinned by its hash as the others are by the lock's. Nothing is compiled
    yet. Raises `BuildError`.
    """
    site = root / site_packages(target)
    requirements = wheel.with_suffix(".txt")
    requirements.write_text("".join(map(_requirement, (*locked, _own(wheel)))))
    offline = ("--no-index", "--find-links", wheels, "--find-links", wheel.parent)
    unpacked = ("--no-compile", "--root-user-action=ignore", "--target", site)
    run([*_PIP, "install", *_QUIET, *_tags(target), *offline, *unpacked, "-r", requirements])
    shutil.rmtree(site / "bin", ignore_errors=True)  # commands of the dependencies
    programs = root / PREFIX / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(f"/usr/bin/python{target.python}")
    (programs / "numawarden").write_text(COMMAND)
    (programs / "numawarden").chmod(0o755)
    (root / PREFIX / "pyvenv.cfg").write_text(SETTINGS)


def compile_all(root: Path, python: Path, target: Target, epoch: int) -> None:
    """Compile the environment below a root; the files name no path of the build.

    By the hash of their source, which is not compared again: a package's files do not change but
    with the package, and have one time only. Raises `BuildError`.
    """
    how = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    run([python, *how, "-s", root, "-p", "/", root / site_packages(target)], epoch)


def _own(wheel: Path) -> Locked:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    name, version, *_ = wheel.name.split("-")
    return lock.Locked(name, version, (digest,))


def _requirement(locked: Locked) -> str:
    hashes = " ".join(f"--hash=sha256:{one}" for one in locked.hashes)
    return f"{locked.name}=={locked.version} {hashes}\n"


def _tags(target: Target) -> tuple[str, ...]:
    only = tuple(f"--platform={platform}" for platform in PLATFORMS)
    return (
        *("--only-binary=:all:", "--python-version", target.python, "--implementation=cp"),
        *only,
    )
