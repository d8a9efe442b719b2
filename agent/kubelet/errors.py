"""Errors of what a kubelet reports about its pods."""

from __future__ import annotations


class PodsUnavailableError(Exception):
    """One way to the kubelet's pods does not work: `way` names it, `found` says why.

    `expected`: its file does not exist, which alone is not a fault. `code` is gRPC's name of the
    status, "" without one.
    """

    def __init__(self, way: str, found: str, *, expected: bool = False, code: str = "") -> None:
        super().__init__(f"{way}: {found}")
        self.way = way
        self.found = found
        self.expected = expected
        self.code = code


class UnreadablePodError(Exception):
    """One pod of the kubelet cannot be read; `uid` is "" where not even that is known."""

    def __init__(self, found: str, uid: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.uid = uid


class SpecificationUnknownError(Exception):
    """A pod runs whose specification, or the kinds of whose containers, no way reports."""
