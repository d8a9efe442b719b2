"""A fixed, small number of damaged inputs for every target; `make fuzz` tries many more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.pods.quantity import Quantity
from sysfs.mask import Mask
from tests.fuzz.__main__ import run
from tests.fuzz.target import Nonsense
from tests.fuzz.targets import TARGETS
from tests.fuzz.texts import LISTS, QUANTITIES, check_list, check_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from tests.fuzz.target import Check, Target

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@pytest.fixture
def check(target: Target) -> Iterator[Check]:
    with target.open() as opened:
        yield opened


@each_target
def test_a_fixed_number_of_damaged_inputs_breaks_nothing(target: Target, check: Check) -> None:
    tally = run(target, check, max(20, 12 * target.weight), seed=0, findings=None)
    assert tally.findings == []


@each_target
def test_some_inputs_are_accepted_and_some_refused(target: Target, check: Check) -> None:
    """Damage that is always seen at once would never reach what lies behind."""
    tally = run(target, check, 60, seed=0, findings=None)
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

        run(target, note, 5, seed=3, findings=None)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 1


def test_a_wrong_reader_is_found_and_its_input_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parse = Quantity.parse
    monkeypatch.setattr(Quantity, "parse", lambda text: Quantity(parse(text).nano + 1))
    tally = run(QUANTITIES, check_quantity, 50, seed=0, findings=tmp_path)
    assert tally.findings
    assert all("Nonsense" in finding for finding in tally.findings)
    assert len(list(tmp_path.glob("quantity-*.txt"))) == len(tally.findings)


def test_a_list_that_is_accepted_with_other_ids_is_nonsense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mask, "parse", lambda _: Mask.of(5))
    with pytest.raises(Nonsense, match="is not"):
        check_list(b"0-3")
    assert run(LISTS, check_list, 30, seed=0, findings=None).findings
