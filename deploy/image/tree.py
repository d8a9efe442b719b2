"""The image's root: the agent's environment, its files, and the directories it is to have."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.config.load import load_config_file
from deploy.building import run
from deploy.dependencies import lock
from deploy.dependencies.lock import GRPC, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Where the agent's environment is, as in the installation instructions.
PREFIX: Final = Path("opt/numawarden")
PYTHON: Final = "3.13"
#: With device plugins, podresources, and the kubelet's Pods API.
LOCK: Final = GRPC
CONFIG: Final = Path("etc/numawarden/config.yaml")
HEALTH: Final = Path("usr/bin/numawarden-health")
LICENCES: Final = Path("usr/share/doc/numawarden")
SBOM: Final = Path("usr/share/sbom/numawarden-image.cdx.json")

#: The tags of wheels that the C library of the image can load, pip's newest first.
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

USERS: Final = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n",
    "group": "root:x:0:\n",
}

#: Loads every compiled file below a directory, so that the error names the library it lacks.
_LOAD: Final = """\
import ctypes, pathlib, sys
for file in sorted(pathlib.Path(sys.argv[1]).rglob("*.so")):
    ctypes.CDLL(str(file))
"""

_PIP: Final = (sys.executable, "-m", "pip")
_QUIET: Final = ("--quiet", "--disable-pip-version-check")


def lay_out(root: Path) -> None:
    """Add to a root what is neither Debian's nor the environment's.

    The configuration, the directories it names, the health check, the licences, and a root user.
    """
    for name, text in USERS.items():
        (root / "etc" / name).write_text(text)
    config = _copied(ROOT / "deploy/config.yaml", root / CONFIG, 0o644)
    for directory, mode in directories(config):
        made = root / directory.relative_to("/")
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(mode)
    _copied(ROOT / "deploy/image/health.py", root / HEALTH, 0o755)
    for name in ("LICENSE", "THIRD-PARTY-LICENSES.txt"):
        _copied(ROOT / name, root / LICENCES / name, 0o644)


def directories(config: Path) -> Iterator[tuple[Path, int]]:
    """Yield each directory that a configuration names, and its mode as of deploy/tmpfiles.conf."""
    loaded = load_config_file(config)
    if loaded.static_pod_path:
        yield loaded.static_pod_path, 0o755
    yield loaded.agent.state_directory, 0o700
    yield loaded.agent.socket_path.parent, 0o750


def install(root: Path, wheel: Path, epoch: int) -> None:
    """Make the agent's environment in a root by the root's own Python; needs the package index.

    Every dependency is downloaded with a hash of the lock file, the installation is offline.
    Raises `BuildError`.
    """
    parts = root / "tmp/parts"
    parts.mkdir(parents=True)
    only = [f"--platform={platform}" for platform in PLATFORMS]
    run(
        [
            *(*_PIP, "download", *_QUIET, "--no-deps", "--only-binary=:all:", "--require-hashes"),
            *("--python-version", PYTHON, "--implementation=cp", *only),
            *("--requirement", LOCK, "--dest", parts / "wheels"),
        ]
    )
    shutil.copy2(LOCK, parts)
    shutil.copy2(wheel, parts)
    import pip  # noqa: PLC0415 - the build's own, run by the other Python

    shutil.copytree(Path(pip.__file__).parent, parts / "pip")
    inside = Path("/tmp/parts")  # noqa: S108 - of the root, which has no other users
    python = ("chroot", root, f"/usr/bin/python{PYTHON}")
    run([*python, "-m", "venv", "--without-pip", f"/{PREFIX}"], epoch)
    pip_install = (
        *("chroot", root, f"/{PREFIX}/bin/python3", inside / "pip", "install", *_QUIET),
        *("--no-index", "--no-compile", "--no-cache-dir", "--root-user-action=ignore"),
    )
    locked = ("--find-links", inside / "wheels", "--require-hashes", "-r", inside / LOCK.name)
    run([*pip_install, *locked], epoch)
    # By its name: of a path the installation would keep where the build had it.
    run([*pip_install, "--no-deps", "--find-links", inside, "numawarden"], epoch)
    shutil.rmtree(parts)
    require_loadable(python, Path(f"/{PREFIX}"))
    compile_all = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    run([*python, *compile_all, f"/usr/lib/python{PYTHON}", f"/{PREFIX}/lib"], epoch)


def require_loadable(python: Sequence[str | Path], directory: Path) -> None:
    """Raise `BuildError` unless a Python can load every compiled file below a directory.

    `python` is its command line. Libraries that wheels are linked with come from Debian's packages.
    """
    run([*python, "-c", _LOAD, directory])


def installed(root: Path) -> dict[str, str]:
    """Return the versions of the Python packages in a root's environment, by canonical name."""
    return lock.installed(root / PREFIX / f"lib/python{PYTHON}/site-packages")


def _copied(source: Path, target: Path, mode: int) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)
    return target
