from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deploy.image import debian
from tests.guest import host
from tests.guest.errors import CommandError, GuestError

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = """\
Debian Debian http://mirror.example/debian/
Debian Debian http://mirror.example/debian/
Debian Debian-Security http://mirror.example/security/
Other Debian http://other.example/
Docker Docker CE http://docker.example/
"""


def test_the_hosts_own_debian_mirrors_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "run", lambda *_: TARGETS)
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/apt-get")
    assert host.debian_sources("trixie") == [
        "deb http://mirror.example/debian/ trixie main",
        "deb http://mirror.example/debian/ trixie-updates main",
        "deb http://mirror.example/security/ trixie-security main",
    ]


def test_a_missing_tool_without_apt_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(GuestError, match="missing on this host: no-tool; install no-package"):
        host.provide([host.Need("no-tool", "no-package")])


def test_a_missing_tool_without_root_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"apt-get": "/usr/bin/apt-get"}
    monkeypatch.setattr("shutil.which", lambda name, **_: found.get(name))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(GuestError, match="apt-get install --no-install-recommends no-package"):
        host.provide([host.Need("no-tool", "no-package")])


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch(mode=0o600)
    host.require_writable(tmp_path / "made/now")
    with pytest.raises(GuestError, match=f"cannot write to {in_the_way}; make it yours"):
        host.require_writable(in_the_way)


def test_nothing_is_installed_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> str:
        raise AssertionError

    monkeypatch.setattr(host, "run", never)
    host.provide([host.Need("sh", "dash"), host.Need("/", "base-files")])


def test_a_failed_program_is_reported_with_what_it_said() -> None:
    with pytest.raises(CommandError, match="exited with 3") as caught:
        host.run(["sh", "-c", "echo nothing works; exit 3"])
    assert caught.value.output == "nothing works\n"
