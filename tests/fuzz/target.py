"""What is fuzzed: how an input is made, and what must hold of whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from random import Random

#: Returns whether an input was accepted. A rejection with one of the errors that are promised is
#: none of its concern; any other exception, and `Nonsense`, is a failure.
Check: TypeAlias = Callable[[bytes], bool]


class Nonsense(AssertionError):  # noqa: N818  # it names what was accepted
    """An input was accepted, and what came of it cannot be."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of bad input, and what reads it.

    `make` draws an input: a valid one that was damaged. `open` gives the check and keeps what it
    needs while inputs are tried. `weight` is its share of the inputs of a whole run.
    """

    name: str
    make: Callable[[Random], bytes]
    open: Callable[[], AbstractContextManager[Check]]
    weight: int = 1


def plain_check(check: Check) -> Callable[[], AbstractContextManager[Check]]:
    """Return the `open` of a check that keeps nothing."""
    return lambda: nullcontext(check)


def demand(what_holds: object, otherwise: str) -> None:
    """Raise `Nonsense` unless something holds."""
    if not what_holds:
        raise Nonsense(otherwise)
