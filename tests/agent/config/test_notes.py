from __future__ import annotations

import pytest

from agent.config.loader import load_config
from agent.config.notes import notes_on

_NINE = "{max-allowable-numa-nodes: 9}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("featureGates: {NodeSwap: true}", "featureGates.NodeSwap changes nothing"),
        (
            f"topologyManagerPolicyOptions: {_NINE}\ntopologyManagerPolicy: restricted",
            "max-allowable-numa-nodes is not needed",
        ),
        (
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}",
            "topologyManagerPolicyOptions change nothing",
        ),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 1}}]", "reservedMemory changes nothing"),
        ("evictionHard: {nodefs.available: 5%}", "only memory.available counts"),
    ],
)
def test_what_changes_nothing_is_noted(text: str, words: str) -> None:
    (note,) = notes_on(load_config(text, "x"))
    assert words in note


def test_nothing_is_noted_of_the_defaults() -> None:
    assert not list(notes_on(load_config("{}", "x")))
