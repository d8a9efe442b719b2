"""What values have that are saved as they are: one type from the decision to the checkpoint.

msgspec reads the annotations of their fields at run time, so the types in these are imported at run
time too.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

#: A text that is not empty.
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
#: An amount or a number, never negative.
Size: TypeAlias = Annotated[int, Meta(ge=0)]


class Saved(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the values in a checkpoint.

    A new field needs a default: files that were saved before do not have it.
    """
