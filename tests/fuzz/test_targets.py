"""A fixed, small number of damaged inputs for every target; `make fuzz` tries many more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.load import load_config
from agent.pods.quantity import Quantity
from sysfs.mask import Mask
from tests.fuzz import checkpoints, configs, pods
from tests.fuzz.__main__ import run
from tests.fuzz.checkpoints import STATE, check_checkpoint, sealed
from tests.fuzz.configs import check_config
from tests.fuzz.pods import check_manifest
from tests.fuzz.target import Nonsense
from tests.fuzz.targets import TARGETS
from tests.fuzz.texts import LISTS, QUANTITIES, check_list, check_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from agent.config.model import Config
    from tests.fuzz.target import Check, Target

pytestmark = pytest.mark.nightly

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@pytest.fixture
def check(target: Target) -> Iterator[Check]:
    with target.open() as opened:
        yield opened


@each_target
def test_a_fixed_number_of_damaged_inputs_breaks_nothing(target: Target, check: Check) -> None:
    tally = run(target, check, max(20, 12 * target.weight), seed=0, failures=None)
    assert tally.failures == []


SOUND: Final = [
    *((check_manifest, text.encode()) for text in pods.BASES),
    *((check_config, text.encode()) for text in configs.BASES),
    (check_checkpoint, sealed(STATE.encode())),
]


@pytest.mark.parametrize(("judge", "data"), SOUND)
def test_what_is_damaged_is_sound_before(judge: Check, data: bytes) -> None:
    """A base that is rejected as it stands would hide what lies behind."""
    assert judge(data)


def test_sets_that_are_mixed_up_reach_what_judges_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods with one CPU are accepted as facts, and would not be reported here."""
    monkeypatch.setattr(checkpoints, "invalid_allocations", lambda *_: ())
    mixed = STATE.replace('"8-11"', '"2-5"').encode()
    with pytest.raises(Nonsense, match="share CPUs, not reported"):
        check_checkpoint(sealed(mixed))


def test_a_manifest_that_is_read_otherwise_than_it_is_written_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = Quantity.parse
    monkeypatch.setattr(Quantity, "parse", lambda text: Quantity(parse(text).nano * 2))
    with pytest.raises(Nonsense, match="not 3"):
        check_manifest(pods.BASES[0].encode())


def test_a_configuration_that_is_read_otherwise_than_it_is_written_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def unreserved(text: bytes, source: str) -> Config:
        return replace(load_config(text, source), reserved_system_cpus=None)

    monkeypatch.setattr(configs, "load_config", unreserved)
    with pytest.raises(Nonsense, match="not '0,8'"):
        check_config(configs.BASES[1].encode())


@each_target
def test_some_inputs_are_accepted_and_some_rejected(target: Target, check: Check) -> None:
    """Damage that is always seen at once would never reach what lies behind."""
    tally = run(target, check, 60, seed=0, failures=None)
    assert 0 < tally.accepted < tally.inputs


@each_target
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(random=st.randoms(use_true_random=False))
def test_hypothesis_finds_no_input_that_breaks_anything(
    target: Target, check: Check, random: Random
) -> None:
    check(target.make(random))


@each_target
def test_a_seed_repeats_its_inputs(target: Target) -> None:
    seen: list[list[bytes]] = [[], []]
    for inputs in seen:

        def note(data: bytes, inputs: list[bytes] = inputs) -> bool:
            inputs.append(data)
            return True

        run(target, note, 5, seed=3, failures=None)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 1


def test_a_wrong_reader_is_found_and_its_input_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parse = Quantity.parse
    monkeypatch.setattr(Quantity, "parse", lambda text: Quantity(parse(text).nano + 1))
    tally = run(QUANTITIES, check_quantity, 50, seed=0, failures=tmp_path)
    assert tally.failures
    assert all("Nonsense" in failure for failure in tally.failures)
    assert len(list(tmp_path.glob("quantity-*.txt"))) == len(tally.failures)


def test_a_list_that_is_accepted_with_other_ids_is_nonsense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mask, "parse", lambda _: Mask.of(5))
    with pytest.raises(Nonsense, match="is not"):
        check_list(b"0-3")
    assert run(LISTS, check_list, 30, seed=0, failures=None).failures
