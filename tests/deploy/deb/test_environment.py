from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from deploy.building import BuildError
from deploy.deb import environment
from deploy.deb.targets import Target
from deploy.dependencies import lock
from deploy.dependencies.lock import Locked

if TYPE_CHECKING:
    from pathlib import Path

#: A distribution with the Python of the tests.
HERE = Target("here-1", "here", f"{sys.version_info.major}.{sys.version_info.minor}")
SITE = environment.site_packages(HERE)
MAIN = "def main() -> None:\n    import thing\n\n    print(thing.__file__)\n"


def make_wheel(directory: Path, name: str, files: dict[str, str]) -> Path:
    """Write a wheel of version 1 with these files, and with a command of its own."""
    info = f"{name}-1.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in whole.items()
    }
    record = "".join(f"{path},sha256={digest},\n" for path, digest in digests.items())
    directory.mkdir(exist_ok=True)
    file = directory / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {**whole, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return file


def locked(wheel: Path) -> Locked:
    name = wheel.name.partition("-")[0]
    return Locked(name, "1", (hashlib.sha256(wheel.read_bytes()).hexdigest(),))


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    files = {"agent/__init__.py": "", "agent/cli/__init__.py": "", "agent/cli/main.py": MAIN}
    return make_wheel(tmp_path / "agent", "numawarden", files)


@pytest.fixture
def thing(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "wheels", "thing", {"thing/__init__.py": "VALUE = 1\n"})


def test_the_environment_has_the_wheels_and_its_command_runs_with_them_alone(
    tmp_path: Path, agent: Path, thing: Path
) -> None:
    root = tmp_path / "root"
    environment.install(root, agent, [locked(thing)], thing.parent, HERE)
    assert lock.installed(root / SITE) == {"numawarden": "1", "thing": "1"}
    programs = root / "opt/numawarden/bin"
    assert {path.name for path in programs.iterdir()} == {"python3", "numawarden"}
    assert str((programs / "python3").readlink()) == f"/usr/bin/python{HERE.python}"
    assert not (root / SITE / "bin").exists()
    assert str(tmp_path) not in (root / "opt/numawarden/pyvenv.cfg").read_text()
    (programs / "python3").unlink()
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    users = tmp_path / "users"
    users.mkdir()
    for module in ("sitecustomize", "thing"):
        (users / f"{module}.py").write_text("raise SystemExit('of a user')\n")
    # As the kernel runs it on a host, where the first line names the environment's Python.
    first = (programs / "numawarden").read_text().partition("\n")[0]
    interpreter, *options = first.removeprefix("#!").split()
    assert interpreter == "/opt/numawarden/bin/python3"
    command = [str(programs / "python3"), *options, str(programs / "numawarden")]
    environ = {**os.environ, "PYTHONPATH": str(users)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    assert done.stdout.strip() == str(root / SITE / "thing/__init__.py")


def test_a_wheel_without_its_hash_is_rejected(tmp_path: Path, agent: Path, thing: Path) -> None:
    other = Locked("thing", "1", ("0" * 64,))
    with pytest.raises(BuildError, match="DO NOT MATCH THE HASHES"):
        environment.install(tmp_path / "root", agent, [other], thing.parent, HERE)


def test_what_is_compiled_names_no_path_of_the_build_and_is_the_same_again(
    tmp_path: Path, agent: Path, thing: Path
) -> None:
    compiled = []
    for name in ("one", "two"):
        root = tmp_path / name
        environment.install(root, agent, [locked(thing)], thing.parent, HERE)
        environment.compile_all(root, environment.interpreter(HERE), HERE, 0)
        [file] = (root / SITE / "thing/__pycache__").iterdir()
        compiled.append(file.read_bytes())
    assert compiled[0] == compiled[1]
    assert f"/{SITE}/thing/__init__.py".encode() in compiled[0]


def test_another_python_or_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"debian-99 is compiled by python3\.99"):
        environment.interpreter(Target("debian-99", "x", "3.99"))
    (tmp_path / "python3.99").symlink_to(sys.executable)
    with pytest.raises(BuildError, match=f"is Python {HERE.python}; debian-99 needs"):
        environment.interpreter(Target("debian-99", "x", "3.99"))
