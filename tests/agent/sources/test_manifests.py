from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from agent.api.documents import AdmissionDocument, RejectionDocument
from agent.managers.decision import Reason
from agent.parsing.errors import MISTAKES_REPORTED
from agent.pods.digest import spec_digest
from agent.pods.manifest import load_pod
from agent.sources.errors import FileFailedError, ManifestDirectoryError
from agent.sources.files import ManifestFile, ManifestFormat, scan
from agent.sources.manifests import ADMITTED, INVALID, ManifestSource
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.pods.model import Pod


@dataclass
class Ledger:
    """An intake that admits pods until it is full and never re-decides one."""

    room: int = 9
    log: list[str] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    releases: int = 0
    #: The uids of pods at which it fails.
    failing: set[str] = field(default_factory=set)

    async def admit(self, pod: Pod, manifest: str) -> AdmissionDocument:
        if pod.uid in self.failing:
            raise FileFailedError(manifest, KeyError())
        self.log.append(f"admit {pod.name}")
        if self.pods.get(pod.uid, spec_digest(pod)) != spec_digest(pod):
            return self._rejected(pod, Reason.CONFLICT)
        if pod.uid not in self.pods and len(self.pods) >= self.room:
            return self._rejected(pod, Reason.TOPOLOGY_AFFINITY)
        self.pods[pod.uid] = spec_digest(pod)
        self.files[pod.uid] = manifest
        return AdmissionDocument(uid=pod.uid, name=pod.name, namespace=pod.namespace, admitted=True)

    @staticmethod
    def _rejected(pod: Pod, reason: Reason) -> AdmissionDocument:
        rejection = RejectionDocument(
            reason=str(reason),
            message="no",
            remedy="",
            resource=None,
            container=None,
            asked=None,
            free={},
        )
        return AdmissionDocument(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            admitted=False,
            rejection=rejection,
        )

    async def release(self, uid: str) -> None:
        if uid in self.failing:
            raise FileFailedError(self.files[uid], KeyError())
        self.log.append(f"release {uid[:1]}")
        del self.pods[uid]
        self.files.pop(uid, None)
        self.releases += 1

    async def scan(
        self, directory: Path, known: Mapping[Path, ManifestFile], form: ManifestFormat
    ) -> list[ManifestFile]:
        return scan(directory, known, form)

    def owners(self) -> Mapping[str, str]:
        return self.files

    def generation(self) -> int:
        return self.releases


@dataclass
class Scene:
    directory: Path
    ledger: Ledger
    source: ManifestSource

    def sync(self) -> dict[str, str]:
        """Bring the ledger in step; return the state of each file by its name."""
        self.ledger.log.clear()
        documents = asyncio.run(self.source.sync())
        return {path.rpartition("/")[2]: found.state for path, found in documents.items()}

    def write(self, name: str, content: bytes) -> None:
        new = self.directory / ".new"
        new.write_bytes(content)
        new.replace(self.directory / name)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    directory = tmp_path / "manifests"
    directory.mkdir(mode=0o755)
    ledger = Ledger()
    return Scene(
        directory, ledger, ManifestSource(directory, ledger, ManifestFormat(load_pod, 65536))
    )


def test_a_new_file_is_admitted_once(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    assert scene.sync() == {"a.yaml": "admitted"}
    assert scene.ledger.log == ["admit web"]
    assert scene.sync() == {"a.yaml": "admitted"}
    assert scene.ledger.log == []


def test_a_file_that_is_gone_releases_its_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    (scene.directory / "a.yaml").unlink()
    assert scene.sync() == {}
    assert scene.ledger.log == ["release 1"]


def test_pods_that_came_otherwise_are_left_alone(scene: Scene) -> None:
    scene.ledger.pods["u-api"] = "digest"
    scene.sync()
    assert scene.ledger.log == []


def test_a_file_that_can_no_longer_be_read_keeps_its_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    scene.write("a.yaml", b"kind: [")
    assert scene.sync() == {"a.yaml": "invalid"}
    assert scene.ledger.log == []
    assert UID in scene.ledger.pods


def test_a_directory_that_vanished_releases_nothing(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    scene.directory.rename(scene.directory.with_name("elsewhere"))
    with pytest.raises(ManifestDirectoryError):
        scene.sync()
    assert UID in scene.ledger.pods


def test_another_spec_for_the_uid_of_a_running_pod_is_a_conflict(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    before = dict(scene.ledger.pods)
    scene.write("a.yaml", manifest(cpu="4"))
    assert scene.sync() == {"a.yaml": "conflict"}
    assert scene.ledger.pods == before
    scene.sync()
    assert scene.ledger.log == []


def test_a_conflict_ends_when_the_file_is_deleted_and_written_again(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    scene.write("a.yaml", manifest(cpu="4"))
    scene.sync()
    (scene.directory / "a.yaml").unlink()
    scene.sync()
    scene.write("a.yaml", manifest(cpu="4"))
    assert scene.sync() == {"a.yaml": "admitted"}


def test_a_changed_file_without_a_uid_is_another_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest(uid=None))
    scene.sync()
    (before,) = scene.ledger.pods
    scene.write("a.yaml", manifest(uid=None, cpu="4"))
    assert scene.sync() == {"a.yaml": "admitted"}
    (after,) = scene.ledger.pods
    assert before != after
    assert [entry.split()[0] for entry in scene.ledger.log] == ["release", "admit"]


def test_a_renamed_file_keeps_its_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    (scene.directory / "a.yaml").rename(scene.directory / "b.yaml")
    assert scene.sync() == {"b.yaml": "admitted"}
    assert "release 1" not in scene.ledger.log
    assert scene.ledger.files[UID].endswith("b.yaml")


def test_a_renamed_file_with_another_spec_is_a_new_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    (scene.directory / "a.yaml").unlink()
    scene.write("b.yaml", manifest(cpu="4"))
    assert scene.sync() == {"b.yaml": "admitted"}
    assert scene.ledger.log == ["admit web", "release 1", "admit web"]


def test_of_two_files_with_one_uid_the_first_keeps_it(scene: Scene) -> None:
    scene.write("b.yaml", manifest())
    scene.sync()
    scene.write("a.yaml", manifest(cpu="4"))
    assert scene.sync() == {"a.yaml": "conflict", "b.yaml": "admitted"}
    (scene.directory / "b.yaml").unlink()
    assert scene.sync() == {"a.yaml": "admitted"}


def test_a_rejected_pod_is_tried_again_only_when_something_was_freed(scene: Scene) -> None:
    scene.ledger.room = 1
    scene.write("a.yaml", manifest())
    scene.write("b.yaml", manifest("db", OTHER_UID))
    assert scene.sync() == {"a.yaml": "admitted", "b.yaml": "rejected"}
    scene.sync()
    assert scene.ledger.log == []
    (scene.directory / "a.yaml").unlink()
    assert scene.sync() == {"b.yaml": "admitted"}


def test_a_pod_that_was_removed_otherwise_is_admitted_again(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    asyncio.run(scene.ledger.release(UID))
    assert scene.sync() == {"a.yaml": "admitted"}
    assert scene.ledger.log == ["admit web"]


def test_pods_of_a_directory_that_was_configured_before_are_kept(
    scene: Scene, tmp_path: Path
) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    scene.source = ManifestSource(other, scene.ledger, ManifestFormat(load_pod, 65536))
    assert scene.sync() == {}
    assert UID in scene.ledger.pods


def test_after_a_restart_a_file_still_owns_its_pod(scene: Scene) -> None:
    scene.write("a.yaml", manifest())
    scene.sync()
    scene.source = ManifestSource(scene.directory, scene.ledger, ManifestFormat(load_pod, 65536))
    assert scene.sync() == {"a.yaml": "admitted"}
    assert UID in scene.ledger.pods


def test_mistakes_are_told_with_their_paths(scene: Scene) -> None:
    scene.write("a.yaml", manifest().replace(b"name: c0", b"name: C_0"))
    (document,) = asyncio.run(scene.source.sync()).values()
    assert document.message.startswith(str(scene.directory / "a.yaml"))
    assert [detail.path for detail in document.details] == ["spec.containers[0].name"]


def test_a_pod_that_fails_to_be_admitted_costs_no_other_and_is_tried_again(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.write(name, manifest(uid=f"{name}-uid"))
    scene.ledger.failing = {"b-uid"}
    assert scene.sync() == {"a": ADMITTED, "b": INVALID, "c": ADMITTED}
    scene.ledger.failing = set()
    assert scene.sync() == {"a": ADMITTED, "b": ADMITTED, "c": ADMITTED}


def test_a_pod_that_fails_to_be_released_costs_no_other_and_is_tried_again(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.write(name, manifest(uid=f"{name}-uid"))
    scene.sync()
    for name in ("a", "b"):
        (scene.directory / name).unlink()
    scene.ledger.failing = {"a-uid"}
    assert scene.sync() == {"a": INVALID}
    assert list(scene.ledger.pods) == ["a-uid"]
    scene.ledger.failing = set()
    assert scene.sync() == {}
    assert not scene.ledger.pods


def test_of_many_mistakes_the_first_are_told_and_how_many_there_are(scene: Scene) -> None:
    mistakes = b"".join(b"  - name: C_%d\n" % number for number in range(300))
    lead = b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
    scene.write("a", lead + mistakes)
    (document,) = asyncio.run(scene.source.sync()).values()
    assert "300 mistakes" in document.message
    assert len(document.details) == MISTAKES_REPORTED
