from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent import files as trust
from agent.files import UntrustedPathError, read_trusted, risk_above, risk_of, trusted_users

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER_USER = 4242


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory in two others, all of them closed to others."""
    directory = tmp_path / "above/within/directory"
    for each in (tmp_path, *reversed(directory.parents[:2]), directory):
        each.mkdir(mode=0o755, exist_ok=True)
        each.chmod(0o755)
    return directory


@pytest.fixture
def owned_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a file or link belong to another user, which needs no root."""
    of_others: set[str] = set()
    lstat = os.lstat

    def shown(path: str | Path) -> os.stat_result:
        status = lstat(path)
        if str(path) not in of_others:
            return status
        return os.stat_result((*status[:4], OTHER_USER, *status[5:]))

    def stat(path: str | Path, *, follow_symlinks: bool = True) -> os.stat_result:
        return os_stat(path) if follow_symlinks else shown(path)

    os_stat = os.stat
    monkeypatch.setattr(os, "lstat", shown)
    monkeypatch.setattr(os, "stat", stat)
    return lambda path: of_others.add(str(path))


def doubted(path: Path) -> Path:
    """Return where the risk is that is above a path."""
    risk = risk_above(path)
    assert risk is not None
    return risk.path


def test_root_and_the_agents_user_are_trusted() -> None:
    assert trusted_users() == {0, os.geteuid()}


def test_what_is_closed_to_others_is_not_a_risk(place: Path) -> None:
    assert risk_of(place, place.stat()) is None
    assert risk_above(place) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_what_others_can_write_is_doubted_with_the_remedy(place: Path, mode: int) -> None:
    place.chmod(mode)
    risk = risk_of(place, place.stat())
    assert risk is not None
    assert str(risk) == f"{place} can be written by others (mode 0{mode:o})"
    assert risk.remedy == f"close it: chmod go-w {place}"


def test_what_is_of_another_has_a_remedy(place: Path, owned_by: Callable[[Path], None]) -> None:
    owned_by(place)
    risk = risk_of(place, place.lstat())
    assert risk is not None
    assert str(risk) == f"{place} belongs to user {OTHER_USER}"
    assert risk.remedy == f"give it to root: chown root {place}"


@pytest.mark.parametrize("above", [0, 1])
def test_a_directory_above_that_others_can_change_is_doubted(
    place: Path, owned_by: Callable[[Path], None], above: int
) -> None:
    directory = place.parents[above]
    directory.chmod(0o777)
    assert doubted(place) == directory
    directory.chmod(0o755)
    owned_by(directory)
    assert doubted(place) == directory


def test_a_sticky_directory_is_not_a_risk(place: Path) -> None:
    place.parent.chmod(0o1777)
    assert risk_above(place) is None


def test_a_link_is_followed_step_by_step(place: Path) -> None:
    links = place.parents[1] / "links"
    links.mkdir(mode=0o755)
    (links / "second").symlink_to(place.parent)
    (place.parents[1] / "first").symlink_to("links/second")
    named = place.parents[1] / "first/directory"
    assert named.samefile(place)
    assert risk_above(named) is None
    links.chmod(0o777)  # a user who writes there decides where `second` leads
    assert doubted(named) == links


def test_a_path_that_is_a_link_itself_leads_through_where_it_leads(place: Path) -> None:
    link = place.parents[1] / "link"
    link.symlink_to("within/../within/directory")
    assert risk_above(link) is None
    place.parent.chmod(0o777)
    assert doubted(link) == place.parent


def test_a_link_of_another_is_doubted(place: Path, owned_by: Callable[[Path], None]) -> None:
    place.parents[1].chmod(0o1777)  # in which he may make one
    link = place.parents[1] / "link"
    link.symlink_to(place.parent)
    assert risk_above(link / "directory") is None
    owned_by(link)
    assert doubted(link / "directory") == link


def test_what_is_missing_or_a_loop_of_links_is_not_a_risk(place: Path) -> None:
    (place / "one").symlink_to(place / "two")
    (place / "two").symlink_to(place / "one")
    for name in ("none/file", "one/file"):
        assert risk_above(place / name) is None


def test_a_file_that_no_other_user_can_change_is_read(place: Path) -> None:
    (place / "file").write_bytes(b"content")
    assert read_trusted(place / "file", 7) == b"content"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_trusted(place / "file", 6)


def test_a_file_that_others_can_write_or_replace_is_not_read(place: Path) -> None:
    (place / "file").touch()
    (place / "file").chmod(0o666)
    with pytest.raises(UntrustedPathError, match=r"file can be written by others \(mode 0666\)"):
        read_trusted(place / "file", 1)
    (place / "file").chmod(0o600)
    place.parent.chmod(0o777)
    said = rf"{place}/file: {place.parent} can be written by others \(mode 0777\)"
    with pytest.raises(UntrustedPathError, match=said):
        read_trusted(place / "file", 1)


@pytest.mark.parametrize("opened", ["good", "evil"])
def test_what_is_judged_is_what_was_opened_whatever_stands_there_then(
    place: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    for name in ("good", "evil"):
        (place / name).write_text(name)
        (place / name).chmod(0o600)
    (place / "evil").chmod(0o666)
    link = place / "link"
    link.symlink_to(opened)

    def flip(_path: Path) -> None:
        link.unlink()
        link.symlink_to("evil" if opened == "good" else "good")

    monkeypatch.setattr(trust, "risk_above", flip)
    if opened == "good":
        assert read_trusted(link, 9) == b"good"
    else:
        with pytest.raises(UntrustedPathError, match="can be written by others"):
            read_trusted(link, 9)


def test_a_pipe_is_rejected_without_waiting_for_its_writer(place: Path) -> None:
    os.mkfifo(place / "pipe", 0o600)
    with pytest.raises(OSError, match="it is not a regular file"):
        read_trusted(place / "pipe", 9)
