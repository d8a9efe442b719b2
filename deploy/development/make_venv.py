"""Make the checkout's virtual environment from the lock file; needs Python, no root.

Debian and Ubuntu ship Python without `ensurepip`. There the pip wheel comes out of the
distribution's own package, downloaded and unpacked without installing anything.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LOCK = ROOT / "deploy" / "requirements" / "dev.txt"
STAMP = VENV / ".made-from"
OLDEST = (3, 11)


class SetupError(Exception):
    """The environment cannot be made here; the text says what is missing."""


def main() -> int:
    """Bring `.venv` up to date with the lock file; return the exit status."""
    try:
        _check_python()
        fingerprint = _fingerprint()
        if not STAMP.is_file() or STAMP.read_text() != fingerprint:
            _make()
            STAMP.write_text(fingerprint)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def _check_python() -> None:
    if sys.version_info < OLDEST:
        desired = ".".join(map(str, OLDEST))
        raise SetupError(
            f"Python {desired} or later is needed, this is {sys.version.split()[0]};"
            " name another one with: make PYTHON=python3.12 ..."
        )


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _make() -> None:
    print("setup: making .venv (once; a minute or less)", file=sys.stderr)
    if _has_ensurepip():
        venv.create(VENV, clear=not _usable(), with_pip=True)
        _install([str(VENV / "bin" / "python"), "-m", "pip"])
        return
    venv.create(VENV, clear=not _usable(), with_pip=False)
    with tempfile.TemporaryDirectory(prefix="numawarden-pip-") as folder:
        wheel = _distribution_pip_wheel(Path(folder))
        _install([str(VENV / "bin" / "python"), f"{wheel}/pip"])


def _usable() -> bool:
    """Return whether `.venv` already runs on this very Python, so that it need not be emptied."""
    return (VENV / "bin" / "python").exists() and _runs(
        [str(VENV / "bin" / "python"), "-c", f"import sys; assert sys.version == {sys.version!r}"]
    )


def _has_ensurepip() -> bool:
    return _runs([sys.executable, "-c", "import ensurepip; ensurepip.version()"])


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _distribution_pip_wheel(folder: Path) -> Path:
    try:
        _download_deb(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            "this Python has no ensurepip and the package python3-pip-whl could not be downloaded"
            f" ({error}); install it with: apt-get install python3-venv"
        ) from error
    wheels = sorted(folder.glob("usr/share/python-wheels/pip-*.whl"))
    if not wheels:
        raise SetupError(
            "the package python3-pip-whl holds no pip wheel; install: apt-get install python3-venv"
        )
    return wheels[-1]


def _download_deb(folder: Path) -> None:
    state = folder / "state"
    cache = folder / "cache"
    (state / "lists" / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    private = [
        "-qq",
        "-o", f"Dir::State={state}",
        "-o", "Dir::State::status=/var/lib/dpkg/status",
        "-o", f"Dir::Cache={cache}",
        "-o", "APT::Sandbox::User=",
    ]  # fmt: skip
    for step in (["update"], ["download", "python3-pip-whl"]):
        subprocess.run(["apt-get", *private, *step], cwd=folder, check=True)
    deb = next(folder.glob("python3-pip-whl*.deb"))
    subprocess.run(["dpkg-deb", "-x", str(deb), str(folder)], check=True)


def _install(pip: list[str]) -> None:
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    steps = (
        [*quiet, "--require-hashes", "-r", str(LOCK)],
        [*quiet, "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    )
    for step in steps:
        done = subprocess.run([*pip, *step], check=False, capture_output=True, text=True)
        if done.returncode:
            # Its warnings (an index that is ignored) say nothing where it succeeds.
            print(done.stdout, done.stderr, sep="", end="", file=sys.stderr)
            raise SetupError(f"pip {' '.join(step[:3])} ... failed; what it said stands above")


if __name__ == "__main__":
    sys.exit(main())
