"""A small number of damaged inputs for every target; `make fuzz` tries many more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from agent.pods.quantity import Quantity
from tests.fuzz import configs, pods
from tests.fuzz.__main__ import TARGETS, run
from tests.fuzz.checkpoints import STATE, check_checkpoint, sealed
from tests.fuzz.configs import check_config
from tests.fuzz.pods import MANIFESTS, check_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fuzz.target import Check, Target

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_inputs_break_nothing_and_some_are_accepted(target: Target) -> None:
    """Damage that is always seen at once would never reach what lies behind."""
    with target.open() as check:
        tally = run(target, check, max(60, 12 * target.weight), seed=0, failures=None)
    assert tally.failures == []
    assert 0 < tally.accepted < tally.inputs


SOUND: Final = [
    *((check_manifest, text.encode()) for text in pods.BASES),
    *((check_config, text.encode()) for text in configs.BASES),
    (check_checkpoint, sealed(STATE.encode())),
]


@pytest.mark.parametrize(("judge", "data"), SOUND)
def test_what_is_damaged_is_sound_before(judge: Check, data: bytes) -> None:
    """A base that is rejected as it stands would hide what lies behind."""
    assert judge(data)


def test_a_wrong_reader_is_found_and_its_inputs_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parse = Quantity.parse
    monkeypatch.setattr(Quantity, "parse", lambda text: Quantity(parse(text).nano * 2))
    tally = run(MANIFESTS, check_manifest, 200, seed=0, failures=tmp_path)
    assert tally.failures
    assert all("Nonsense" in failure for failure in tally.failures)
    assert len(list(tmp_path.glob("manifest-*.txt"))) == len(tally.failures)
