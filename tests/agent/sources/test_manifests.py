from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from agent.pods.manifest import load_pod
from agent.pods.model import ManifestError
from agent.sources.manifests import ManifestFile, ManifestFormat, scan
from agent.sources.source import ManifestDirectoryError, ManifestFileError
from agent.text import printable
from tests.agent.server.support import UID, manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.pods.model import Pod

FORM = ManifestFormat(load_pod, 4096)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir(mode=0o755)
    return path


def read(directory: Path, known: tuple[ManifestFile, ...] = ()) -> list[ManifestFile]:
    return scan(directory, {file.path: file for file in known}, FORM)


@pytest.mark.parametrize("names", ["a.json b.yaml c", "a.bak.yaml a~b bak dpkg-old"])
def test_files_are_read_in_order_of_their_names(directory: Path, names: str) -> None:
    for name in reversed(names.split()):
        (directory / name).write_bytes(manifest(uid=None))
    assert [file.path.name for file in read(directory)] == names.split()


def test_hidden_files_and_directories_are_ignored(directory: Path) -> None:
    (directory / ".a.yaml.swp").write_bytes(manifest())
    (directory / "sub").mkdir()
    (directory / "sub" / "a.yaml").write_bytes(manifest())
    assert read(directory) == []


# Shows in differences.md: editor-backups
@pytest.mark.parametrize("suffix", ["~", ".bak", ".swp", ".orig", ".rpmsave", ".rpmnew", ".rpmorig",
                                    ".dpkg-old", ".dpkg-dist", ".dpkg-new"])  # fmt: skip
def test_what_editors_and_packages_leave_is_ignored(directory: Path, suffix: str) -> None:
    for name in ("a.yaml", f"a.yaml{suffix}"):
        (directory / name).write_bytes(manifest(uid=None))
    assert [file.path.name for file in read(directory)] == ["a.yaml"]


def test_a_file_without_a_uid_gets_one_of_its_own(directory: Path) -> None:
    (directory / "a.yaml").write_bytes(manifest(uid=None))
    (directory / "b.yaml").write_bytes(manifest(uid=None))
    uids = {file.pod.uid for file in read(directory) if file.pod is not None}
    assert len(uids) == 2


def test_a_bad_file_does_not_keep_others_from_being_read(directory: Path) -> None:
    (directory / "a.yaml").write_text("kind: Pod\n")
    (directory / "b.yaml").write_bytes(manifest())
    bad, good = read(directory)
    assert isinstance(bad.error, ManifestError)
    assert bad.pod is None
    assert good.pod is not None
    assert good.pod.uid == UID


def test_an_unchanged_file_is_not_read_again(directory: Path) -> None:
    (directory / "a.yaml").write_bytes(manifest())
    first = read(directory)
    assert read(directory, tuple(first))[0] is first[0]


def test_a_replaced_file_is_read_again(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_bytes(manifest())
    (first,) = read(directory)
    new = directory / ".new"
    new.write_bytes(manifest(cpu="3"))
    os.utime(new, ns=(first.stamp.modified_ns, first.stamp.modified_ns))
    new.replace(path)
    (second,) = read(directory, (first,))
    assert second.pod != first.pod


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return what makes something else in the place of a file or directory."""

    def spoil(path: Path) -> None:
        (path.rmdir if path.is_dir() else path.unlink)()
        make(path)

    return spoil


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (replaced(lambda file: file.symlink_to("/dev/null")), "is a symbolic link; put the file"),
        (replaced(os.mkfifo), "is not a regular file"),
        (lambda file: file.chmod(0o666), "written by others (mode 0666); close it: chmod go-w"),
        (lambda file: file.write_bytes(b"#" * 4097), "larger than 4096 bytes"),
        (lambda file: os.truncate(file, 1 << 40), "larger than"),
        pytest.param(lambda f: os.chown(f, 4242, -1), "user 4242; give it to root", marks=AS_ROOT),
    ],
)
def test_a_file_that_is_not_safe_is_rejected_without_waiting(
    directory: Path, spoil: Callable[[Path], object], said: str
) -> None:
    (directory / "a.yaml").write_bytes(manifest())
    spoil(directory / "a.yaml")
    (file,) = read(directory)
    assert isinstance(file.error, ManifestFileError)
    assert said in str(file.error)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"caf\xe9.yaml", "caf\\xe9.yaml: its name is not UTF-8; rename it"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80: its name is not UTF-8; rename it"),
        (b"a\x1b[2J", "a\\x1b[2J: its name has a character that is not printable; rename it"),
        (b"a\nb", "a\\nb: its name has a character that is not printable; rename it"),
        (b"\xe2\x80\xae", "\\u202e: its name has a character that is not printable; rename it"),
    ],
)
@pytest.mark.parametrize("uid", [None, UID])
def test_a_file_whose_name_cannot_be_shown_is_rejected_and_no_other(
    directory: Path, name: bytes, shown: str, uid: str | None
) -> None:
    (directory / os.fsdecode(name)).write_bytes(manifest(uid=uid))
    (directory / "caf\u00e9 au lait.yaml").write_bytes(manifest())
    found = {printable(str(file.path)): file for file in read(directory)}
    good = found.pop(str(directory / "caf\u00e9 au lait.yaml"))
    assert good.pod is not None
    ((path, bad),) = found.items()
    assert isinstance(bad.error, ManifestFileError)
    assert str(bad.error) == f"{directory}/{shown}"
    assert path.isprintable()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("bug"), UnicodeError(), KeyError()])
def test_whatever_one_file_does_others_are_read(directory: Path, error: Exception) -> None:
    failing = True

    def load(content: bytes, source: str) -> Pod:
        if failing and source.endswith("a.yaml"):
            raise error
        return load_pod(content, source)

    for name in ("a.yaml", "b.yaml"):
        (directory / name).write_bytes(manifest(uid=None))
    with structlog.testing.capture_logs() as lines:
        bad, good = files = scan(directory, {}, ManifestFormat(load, 4096))
    assert good.pod is not None
    said = f"internal error ({type(error).__name__}); see the agent log"
    assert str(bad.error) == f"{bad.path}: {said}"
    (line,) = lines
    assert (line["event"], line["error"]) == ("manifest processing failed", type(error).__name__)
    failing = False
    again, _ = scan(directory, {file.path: file for file in files}, ManifestFormat(load, 4096))
    assert again.pod is not None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (Path.rmdir, "does not exist; create it"),
        (replaced(Path.touch), "is not a directory"),
        (lambda place: place.chmod(0o777), "can be written by others"),
        (lambda place: place.chmod(0o775), "can be written by others"),
        (lambda place: place.chmod(0o1777), "can be written by others"),
        pytest.param(lambda f: os.chown(f, 4242, -1), "user 4242, who could make", marks=AS_ROOT),
    ],
)
def test_a_directory_that_is_not_safe_is_rejected(
    directory: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(directory)
    with pytest.raises(ManifestDirectoryError, match=said):
        read(directory)


def test_a_directory_that_others_could_replace_is_rejected(directory: Path) -> None:
    above = directory / "above"
    inner = above / "manifests"
    inner.mkdir(parents=True, mode=0o755)
    above.chmod(0o777)
    with pytest.raises(ManifestDirectoryError, match=f"{above} can be written by others") as caught:
        read(inner)
    assert caught.value.remedy == f"close it: chmod go-w {above}"


def test_a_link_to_the_directory_is_as_good_as_the_place_it_stands_in(directory: Path) -> None:
    inner, open_to_all = directory / "manifests", directory / "open"
    inner.mkdir(mode=0o755)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (directory / "good").symlink_to(inner)
    (open_to_all / "bad").symlink_to(inner)
    assert read(directory / "good") == []
    with pytest.raises(ManifestDirectoryError, match=f"{open_to_all} can be written by others"):
        read(open_to_all / "bad")


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_directory_that_is_exchanged_meanwhile_is_read_as_it_was_checked(
    directory: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    (directory / "a.yaml").write_bytes(manifest())

    def exchanged(path: Path) -> None:
        """Put another directory in the place of the one that was found to be safe."""
        directory.rename(directory.with_name("former"))
        path.mkdir()
        path.chmod(mode)
        (path / "b.yaml").write_bytes(manifest(uid=None))

    monkeypatch.setattr("agent.sources.manifests.risk_above", exchanged)
    assert [file.path.name for file in read(directory)] == ["a.yaml"]


def test_no_descriptor_of_the_directory_stays_open(directory: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = [*descriptors.iterdir()]
    read(directory)
    directory.chmod(0o777)
    with pytest.raises(ManifestDirectoryError):
        read(directory)
    assert len([*descriptors.iterdir()]) == len(before)


def test_a_file_that_vanishes_while_the_directory_is_read_is_passed_over(directory: Path) -> None:
    (directory / "a.yaml").write_bytes(manifest())
    (directory / "b.yaml").write_bytes(manifest(uid=None))

    def load_and_remove(content: bytes, source: str) -> object:
        (directory / "b.yaml").unlink(missing_ok=True)
        return load_pod(content, source)

    files = scan(directory, {}, ManifestFormat(load_and_remove, 4096))  # type: ignore[arg-type]
    assert [file.path.name for file in files] == ["a.yaml"]
