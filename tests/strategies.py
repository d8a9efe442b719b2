"""What the Hypothesis strategies of several tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

_Value = TypeVar("_Value")


def built(
    kind: Callable[..., _Value], /, *parts: SearchStrategy[object], **fields: SearchStrategy[object]
) -> SearchStrategy[_Value]:
    """Return `st.builds` for a `msgspec.Struct`.

    By itself it asks for the types of the fields, and those are imported for type checkers only.
    """

    def build(*args: object, **kwargs: object) -> _Value:
        return kind(*args, **kwargs)

    return st.builds(build, *parts, **fields)
