"""The versions that programs report of themselves: kubelets, API servers, container runtimes."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

_VERSION: Final = re.compile(
    r"(?:[0-9]+:)?v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", re.ASCII
)


class ReportedVersion(Struct, frozen=True):
    """What a program said of its version, or why it did not say."""

    #: The program's name.
    program: str = ""
    version: str = ""
    #: What was asked, in words.
    source: str = ""
    #: Why it did not answer; "" where it did.
    problem: str = ""


def version_of(text: str) -> tuple[int, int, int] | None:
    """Return a version's numbers: of `v2.1.9`, `1.7.24~ds1-6`, `1:2.2`; None for another text."""
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))
