from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.kubelet import pods_api as allocated_pods
from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_api import CORE_V1, FILE_NAME, read_allocated
from tests.fakes.pods_api import container, pod_message

if TYPE_CHECKING:
    from pathlib import Path

UID = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
AMOUNTS = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}


def v1(*uids: str) -> bytes:
    """Return the file as kubelet v1.36 writes it."""
    entry = {
        "ContainerResources": {"main": AMOUNTS},
        "PodLevelResources": None,
        "EmptyDirVolumeLimits": None,
    }
    return _file({"entries": dict.fromkeys(uids, entry)})


def v2(*pods: bytes) -> bytes:
    """Return the file with whole pods."""
    raw = CORE_V1["PodList"](items=list(pods)).SerializeToString()
    uids = [CORE_V1["Pod"].FromString(pod).metadata.uid for pod in pods]
    entries = {uid: {"ContainerResources": {"main": AMOUNTS}} for uid in uids}
    data = {"podList": base64.b64encode(raw).decode(), "entries": entries}
    return _file(data, version="v2")


def _file(data: Any, **fields: str) -> bytes:  # noqa: ANN401  # any JSON
    return json.dumps({"data": json.dumps(data), "checksum": 1, **fields}).encode()


def write(directory: Path, content: bytes) -> None:
    file = directory / FILE_NAME
    file.write_bytes(content)
    file.chmod(0o600)


def test_a_kubelet_up_to_1_36_says_only_that_pods_are_there(tmp_path: Path) -> None:
    write(tmp_path, v1(UID, OTHER, "not/a/uid"))
    found = read_allocated(tmp_path)
    assert found.uids == {UID, OTHER}
    assert found.pods == {}


def test_a_later_kubelet_has_whole_pods_with_the_kinds_of_their_containers(tmp_path: Path) -> None:
    whole = pod_message(UID, init=(container("wait", "cpu=1"),))
    taken_over = pod_message(OTHER, name="")
    write(tmp_path, v2(whole, taken_over))
    found = read_allocated(tmp_path)
    assert found.uids == {UID, OTHER}
    assert list(found.pods) == [UID]
    specification = found.pods[UID].specification
    assert isinstance(specification, dict)
    assert [each["name"] for each in specification["spec"]["initContainers"]] == ["wait"]  # type: ignore[index,call-overload,union-attr]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"data": 3}',
        b'{"data": "{"}',
        b"\xff",
        _file({"entries": [1]}),
        _file({"podList": "%%%"}, version="v2"),
        _file({"podList": "/////w=="}, version="v2"),
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, content)
    with pytest.raises(PodsUnavailableError, match="decoded") as raised:
        read_allocated(tmp_path)
    assert raised.value.way == str(tmp_path / FILE_NAME)
    assert not raised.value.expected


@pytest.mark.parametrize("content", [b"{}", _file({}), _file({"entries": None})])
def test_an_empty_file_has_no_pods(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, content)
    assert read_allocated(tmp_path).uids == set()


def test_a_file_that_is_not_there_is_expected(tmp_path: Path) -> None:
    with pytest.raises(PodsUnavailableError) as raised:
        read_allocated(tmp_path)
    assert raised.value.expected


def test_a_file_that_other_users_can_write_is_not_used(tmp_path: Path) -> None:
    write(tmp_path, v1(UID))
    (tmp_path / FILE_NAME).chmod(0o666)
    with pytest.raises(PodsUnavailableError, match="chmod go-w"):
        read_allocated(tmp_path)


def test_a_file_that_is_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocated_pods, "LONGEST_FILE", 100)
    write(tmp_path, v1(UID, OTHER))
    with pytest.raises(PodsUnavailableError, match="larger than 100 bytes"):
        read_allocated(tmp_path)


@given(st.data())
def test_no_damage_raises_anything_but_an_error_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(data.draw(st.sampled_from((v1(UID), v2(pod_message(UID))))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    directory = tmp_path_factory.mktemp("damaged")
    write(directory, bytes(whole))
    try:
        read_allocated(directory)
    except PodsUnavailableError:
        return
