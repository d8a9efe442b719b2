from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct
from msgspec.structs import replace

from agent.runtimes import (
    LIMIT,
    PLACES,
    RuntimeClaim,
    RuntimeFileError,
    read_claim,
    read_json,
    read_state,
    stamp_of,
)
from cgroupfs.names import Runtime
from cgroupfs.state import WriterRecord
from tests.agent.bundles import bundle, cri, crio, runc_state, write
from tests.agent.reconcile.pods import OTHER, UID, mixed
from tests.fakes.kernel import quota

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("limit", "period", "written"),
    [
        (0, 0, {}),
        (-1, 100_000, quota()),
        (-1, 0, quota()),
        (0, 50_000, {"cpu.max": "max 50000"}),
        (20_000, 0, quota(20_000)),
    ],
)
def test_a_quota_is_what_the_runtime_writes_for_it(
    tmp_path: Path, limit: int, period: int, written: dict[str, str]
) -> None:
    file = runc_state(tmp_path, {"cpu_quota": limit, "cpu_period": period})
    assert read_state(file) == WriterRecord(values=written)
    left_out = write(tmp_path / "state.json", {"config": {"cgroups": {}}})
    assert read_state(left_out) == WriterRecord()


@pytest.mark.parametrize("state", [{}, {"config": {}}, {"config": {"cgroups": None}}])
def test_a_state_of_another_shape_is_damaged(tmp_path: Path, state: object) -> None:
    with pytest.raises(RuntimeFileError, match="it is damaged"):
        read_state(write(tmp_path / "state.json", state))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


class Content(Struct):
    """Something with a text."""

    text: str = ""


def rejected(file: Path) -> str:
    with pytest.raises(RuntimeFileError) as error:
        read_json(file, Content)
    assert error.value.path == file
    return str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"text": 1}', b'{"text": "\xff"}', b"[" * 100_000, b"[]", b"{} {}"],
    ids=["empty", "cut off", "of another type", "no UTF-8", "deep", "a list", "two"],
)
def test_damage_is_said_with_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert rejected(file).startswith(f"{file}: it is damaged (")


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b'{"text":"a","more":[1,{"b":null}]}'.ljust(LIMIT))
    assert read_json(file, Content).text == "a"
    file.write_bytes(b"{}" + b" " * (LIMIT - 1))
    assert rejected(file) == f"{file}: it cannot be read (it is larger than {LIMIT} bytes)"


def test_a_file_that_others_can_write_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    file.chmod(0o664)
    assert rejected(file).startswith(
        f"{file}: it can be written by others (mode 0664), so the runtime"
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [(os.mkfifo, "not a regular file"), (Path.mkdir, "it cannot be read (Is a directory)")],
)
def test_what_is_no_file_is_said(tmp_path: Path, make: Callable[[Path], None], says: str) -> None:
    make(tmp_path / "config.json")
    assert rejected(tmp_path / "config.json").endswith(says)


def test_a_file_that_cannot_be_opened_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")

    def reject(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", reject)
    assert rejected(file).endswith("it cannot be read (Permission denied)")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "config.json", Content)
    assert stamp_of(str(tmp_path / "config.json")) is None


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    before = stamp_of(str(file))
    assert before == stamp_of(str(file))
    file.write_text("{ }")
    assert stamp_of(str(file)) != before


CRI = PLACES[Runtime.CONTAINERD][0].keys
CRIO = PLACES[Runtime.CRIO][0].keys
OF_CRI, OF_CRIO = cri("db"), crio("db")


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {CRI.container: "db"},
        {CRI.kind: "container"},
        {CRI.kind: "container", CRI.container: ""},
        {CRI.kind: "podsandbox", CRI.container: "db"},
        OF_CRIO,
    ],
)
def test_a_bundle_has_to_say_what_it_is(tmp_path: Path, annotations: dict[str, str]) -> None:
    file = bundle(tmp_path, annotations)
    with pytest.raises(RuntimeFileError, match="do not name a pod's container") as error:
        read_claim(file, CRI)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("claim", "matches"),
    [
        (RuntimeClaim("db", UID, "shop", "default"), True),
        (RuntimeClaim("db", UID, "other", "other"), True),
        (RuntimeClaim("db", OTHER, "shop", "default"), False),
        (RuntimeClaim("db", "", "shop", "default"), True),
        (RuntimeClaim("db", "", "shop", "other"), False),
        (RuntimeClaim("db", "", "other", "default"), False),
        (RuntimeClaim("db", "", "", ""), False),
    ],
)
def test_a_claim_is_of_a_pod_by_uid_else_by_full_name(claim: RuntimeClaim, matches: bool) -> None:  # noqa: FBT001 - a case
    assert claim.is_of(replace(mixed(), name="shop")) is matches
    assert not RuntimeClaim("db", "", "", "").is_of(replace(mixed(), name="", namespace=""))


def test_annotations_of_a_pods_author_do_not_stand_in_for_the_runtimes(tmp_path: Path) -> None:
    file = bundle(tmp_path, OF_CRI | {"io.kubernetes.container.name": "backup"})
    assert read_claim(file, CRI).container == "db"
