"""Errors of starting enforcement and of binding a container."""

from __future__ import annotations


class EnforcementError(Exception):
    """Base of this package's errors."""


class EnforcementStartError(EnforcementError):
    """The cgroup tree or systemd cannot be used; one line: what, found, remedy."""

    def __init__(self, what: str, found: str, remedy: str) -> None:
        super().__init__(f"{what}: {found}; {remedy}")
        self.what = what
        self.found = found
        self.remedy = remedy


class BindingError(EnforcementError):
    """A container cannot be bound to the cgroup or process that was named."""

    def __init__(self, asked: str, found: str, remedy: str) -> None:
        super().__init__(f"cannot bind {asked}: {found}; {remedy}")
        self.asked = asked
        self.found = found
        self.remedy = remedy
