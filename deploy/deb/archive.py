"""The package file: its control files, its maintainer scripts, and the archive dpkg reads."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.building import BuildError, run
from deploy.deb.targets import ARCHITECTURE
from deploy.deb.tree import CONFIG, NAME

if TYPE_CHECKING:
    from deploy.deb.targets import Target

SCRIPTS: Final = Path(__file__).with_name("scripts")
MAINTAINER: Final = "Numawarden maintainers <maintainers@numawarden.invalid>"
KIB: Final = 1024

#: The C library that the wheels of `deploy.image.tree.PLATFORMS` were built for, the libraries that
#: grpcio loads, and the systemd that the unit needs.
LIBRARIES: Final = ("libc6 (>= 2.28)", "libgcc-s1", "libstdc++6", "systemd (>= 252)")

#: The variable of dpkg-deb(1) that names another compressor.
COMPRESSOR: Final = "DPKG_DEB_COMPRESSOR_TYPE"

DESCRIPTION: Final = """\
NUMA resource agent: gives pods their CPUs, memory nodes and devices
 Numawarden does what the Topology, CPU, Memory and Device managers of the
 Kubernetes kubelet do, on any Linux host with cgroup v2, with or without
 Kubernetes: it admits pod manifests, gives them exclusive CPUs and NUMA-aligned
 memory and devices, writes that to cgroups, and repairs what others change.
 .
 The agent has a Python environment of its own in /opt/numawarden."""


def write(root: Path, version: str, target: Target, epoch: int, output: Path) -> Path:
    """Write the package of a settled root into a directory; return its file.

    The same root gives the same bytes; all of it belongs to root and is as old as `epoch`
    (seconds). Adds the directory DEBIAN to the root. Raises `BuildError`.
    """
    if shutil.which("dpkg-deb") is None:
        raise BuildError("dpkg-deb is missing; install the package dpkg")
    control = root / "DEBIAN"
    sums, size = _sums(root), _size(root)
    control.mkdir()
    control.chmod(0o755)
    (control / "control").write_text(describe(version, target, size))
    (control / "conffiles").write_text(f"/{CONFIG}\n")
    (control / "md5sums").write_text(sums)
    for script in SCRIPTS.iterdir():
        shutil.copyfile(script, control / script.name)
    for file in control.iterdir():
        file.chmod(0o755 if (SCRIPTS / file.name).exists() else 0o644)
    output.mkdir(parents=True, exist_ok=True)
    file = output / f"{NAME}_{version}_{ARCHITECTURE}.deb"
    # xz with several threads packs otherwise than with one; -z6 takes twice as long for 10 % less.
    packing = ("-Zxz", "-z3") if COMPRESSOR not in os.environ else ()
    threads = "--threads-max=1"
    run(["dpkg-deb", "--root-owner-group", *packing, threads, "--build", root, file], epoch)
    return file


def remove_built(output: Path, target: Target) -> None:
    """Remove a target's packages and SBOMs from a directory: apt would find several versions."""
    for pattern in (
        f"{NAME}_*~{target.suffix}_{ARCHITECTURE}.deb",
        f"{NAME}_*~{target.suffix}.cdx.json",
    ):
        for file in list(output.glob(pattern)):
            file.unlink()


def describe(version: str, target: Target, size: int) -> str:
    """Return the control file (Debian Policy, 5.3); `size` is in KiB.

    It depends on the version of Python itself, not on the distribution's default one: an upgrade of
    the distribution leaves the old version installed, and the agent running with it.
    """
    depends = ", ".join((f"python{target.python}", *LIBRARIES))
    fields = {
        "Package": NAME,
        "Version": version,
        "Architecture": ARCHITECTURE,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size),
        "Depends": depends,
        "Recommends": "default-dbus-system-bus | dbus-system-bus",
        "Section": "admin",
        "Priority": "optional",
        "Description": DESCRIPTION,
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _sums(root: Path) -> str:
    """Return the file md5sums of deb-md5sums(5): what dpkg compares installed files with."""
    lines = []
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink():
            digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
            lines.append(f"{digest}  {file.relative_to(root)}\n")
    return "".join(lines)


def _size(root: Path) -> int:
    """Return Installed-Size as dpkg-gencontrol counts: files in whole KiB, 1 of anything else."""
    total = 0
    for directory, names, files in os.walk(root):
        for path in (Path(directory) / name for name in (*names, *files)):
            plain = path.is_file() and not path.is_symlink()
            total += -(-path.stat().st_size // KIB) if plain else 1
    return total
