from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.runtimes.bundle import RuntimeClaim, read_claim, read_spec
from agent.runtimes.files import RuntimeFileError
from agent.runtimes.places import PLACES
from cgroupfs.names import Runtime
from cgroupfs.state import WriterRecord
from sysfs.mask import Mask
from tests.agent.reconcile.pods import OTHER, UID, mixed
from tests.agent.runtimes.bundles import bundle, cri, crio

if TYPE_CHECKING:
    from pathlib import Path

CRI = PLACES[Runtime.CONTAINERD][0].keys
CRIO = PLACES[Runtime.CRIO][0].keys
OF_CRI, OF_CRIO = cri("db"), crio("db")


def test_containerds_annotations_are_read(tmp_path: Path) -> None:
    claim = RuntimeClaim("db", UID, "shop", "default")
    assert read_claim(bundle(tmp_path, OF_CRI), CRI) == claim
    assert read_claim(bundle(tmp_path, cri(None)), CRI) == replace(claim, container=None)


def test_crios_annotations_are_read(tmp_path: Path) -> None:
    claim = RuntimeClaim("db", UID, "shop", "default")
    assert read_claim(bundle(tmp_path, OF_CRIO), CRIO) == claim
    assert read_claim(bundle(tmp_path, crio(None)), CRIO) == replace(claim, container=None)


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


def test_what_a_container_was_made_with_is_read(tmp_path: Path) -> None:
    assert read_spec(bundle(tmp_path, OF_CRI, {"cpus": "2-3"})) == WriterRecord(Mask.parse("2-3"))
