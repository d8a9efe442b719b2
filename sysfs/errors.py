"""What can be wrong with a host's tree, each with the file, what was found and what to do."""

from __future__ import annotations

from typing import Final

_QUOTED: Final = 60


class SysfsError(Exception):
    """A tree does not describe a host.

    `path` is the file or directory at fault, `found` what stands there, `remedy` what to do.
    """

    def __init__(self, path: str, found: str, remedy: str) -> None:
        super().__init__(path, found, remedy)
        self.path = path
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.found}; {self.remedy}"


class MissingFile(SysfsError):  # noqa: N818  # named for what is at fault, as its siblings
    """A file that the kernel always shows is absent and has no documented fallback."""

    def __init__(self, path: str, remedy: str) -> None:
        super().__init__(path, "there is no such file", remedy)

    def __reduce__(self) -> tuple[type[MissingFile], tuple[str, str]]:
        return MissingFile, (self.path, self.remedy)


class UnreadableFile(SysfsError):  # noqa: N818  # as above
    """The operating system rejects to read a file or to list a directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            path, f"it cannot be read ({reason})", "check its permissions and that it is a file"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnreadableFile], tuple[str, str]]:
        return UnreadableFile, (self.path, self.reason)


class MalformedFile(SysfsError):  # noqa: N818  # as above
    """A file's content is not what the kernel would write there."""

    def __init__(self, path: str, content: str, expected: str) -> None:
        super().__init__(
            path,
            f"found {quote(content)} where {expected} is expected",
            "the tree is damaged or not a sysfs; capture it again or repair this file",
        )
        self.content = content
        self.expected = expected

    def __reduce__(self) -> tuple[type[MalformedFile], tuple[str, str, str]]:
        return MalformedFile, (self.path, self.content, self.expected)


class InconsistentTree(SysfsError):  # noqa: N818  # as above
    """Two files contradict each other."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            path,
            found,
            "the tree is damaged, or CPUs came or went while it was read; try once more",
        )

    def __reduce__(self) -> tuple[type[InconsistentTree], tuple[str, str]]:
        return InconsistentTree, (self.path, self.found)


def quote(content: str) -> str:
    """Return the content as one short quoted line."""
    shown = content if len(content) <= _QUOTED else f"{content[:_QUOTED]}…"
    return repr(shown)
