"""What values have that are saved, sent or chosen: one type from the decision to the file.

msgspec reads the annotations of their fields at run time, so the types in these are imported at run
time too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self, TypeAlias

from msgspec import Meta, Struct

from sysfs.mask import Mask

#: A text that is not empty.
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
#: An amount or a number, never negative.
Size: TypeAlias = Annotated[int, Meta(ge=0)]


class Saved(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the values in a checkpoint.

    A new field needs a default: files that were saved before do not have it.
    """


class KeyChoice(StrEnum):
    """Base of the values that a key lets choose from: each member is a name and its meaning."""

    #: For the page of the configuration; "" where the name is enough.
    meaning: str

    def __new__(cls, name: str, meaning: str = "") -> Self:
        """Make a member; a call with a name alone looks the member up."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member


def plain(value: object) -> object:
    """Return what msgspec has no JSON for: a set of ids as a list of the kernel's, a mapping.

    This is an `enc_hook`; raises `NotImplementedError` for anything else.
    """
    if isinstance(value, Mask):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")
