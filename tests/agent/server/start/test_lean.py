"""What is there after a start is not looked through again; what comes later is collected."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from agent.server.start.process import settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Leave the collector as it was."""
    yield
    gc.unfreeze()


def test_what_is_there_is_out_of_the_collectors_sight() -> None:
    kept = Ring()
    settle_memory()
    assert not any(seen is kept for seen in gc.get_objects())


def test_rubbish_from_before_is_not_kept() -> None:
    gone = weakref.ref(Ring())
    settle_memory()
    assert gone() is None


def test_what_comes_later_is_collected() -> None:
    settle_memory()
    gone = weakref.ref(Ring())
    gc.collect()
    assert gone() is None
