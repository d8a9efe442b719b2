from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.load.growth import _measure

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_every_part_of_an_admission_is_measured_once_a_round(tmp_path: Path, kind: str) -> None:
    times = _measure(tmp_path, kind, pods=3, containers=2, rounds=2)
    assert {name: len(each) for name, each in times.items()} == {
        "decision": 2,
        "save": 2,
        "enforced": 2,
        "removal": 2,
    }
