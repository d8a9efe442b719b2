"""Reading one small file of a tree: quickly, whole, and with errors that name it."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Final

from sysfs.errors import MalformedFile, MissingFile, UnreadableFile
from sysfs.mask import MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

#: No file of sysfs that discovery reads comes near; a larger one is not of a kernel.
_LIMIT: Final = 1 << 20
_CHUNK: Final = 1 << 14
_PAGE: Final = 4096
#: O_NONBLOCK: a FIFO in an unpacked tree must not hang its reader.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MAP: Final = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8})*", re.ASCII)
#: What some kernels print for a list that was never set (`nohz_full`).
_UNSET: Final = "(null)"


class Tree:
    """The files below one root directory, named by their path without a leading slash.

    Every method that reads raises `UnreadableFile` where the system refuses, and
    `MalformedFile` where the content is not of the named form.
    """

    __slots__ = ("_prefix",)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        prefix = os.fspath(root)
        self._prefix = prefix if prefix.endswith("/") else prefix + "/"

    def path(self, name: str) -> str:
        """Return where a file of the tree is."""
        return self._prefix + name

    def find(self, name: str) -> str | None:
        """Return a file's text without surrounding white space and NULs; None if absent."""
        path = self._prefix + name
        try:
            content = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableFile(path, error.strerror or str(error)) from error
        try:
            return content.decode("ascii").strip("\0 \t\n")
        except UnicodeDecodeError as error:
            raise MalformedFile(path, content.decode("latin-1"), "plain text") from error

    def text(self, name: str, remedy: str) -> str:
        """Return a file's text; raises `MissingFile` with the remedy if it is absent."""
        found = self.find(name)
        if found is None:
            raise MissingFile(self.path(name), remedy)
        return found

    def find_integer(self, name: str) -> int | None:
        """Return the decimal integer in a file; None if the file is absent."""
        text = self.find(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            raise MalformedFile(self.path(name), text, "a whole number")
        return int(text)

    def find_list(self, name: str) -> Mask | None:
        """Return the set in a file of the kernel's list format (`0-3,8`); None if absent."""
        text = self.find(name)
        if text is None:
            return None
        if text == _UNSET:
            return Mask()
        try:
            return Mask.parse(text)
        except ValueError as error:
            expected = f"a list such as 0-3,8 ({error})"
            raise MalformedFile(self.path(name), text, expected) from error

    def find_map(self, name: str) -> Mask | None:
        """Return the set in a file of the kernel's hexadecimal format (`00000000,000000ff`)."""
        text = self.find(name)
        if text is None:
            return None
        if not _MAP.fullmatch(text):
            raise MalformedFile(self.path(name), text, "a mask such as 00000000,000000ff")
        mask = Mask(int(text.replace(",", ""), 16))
        if mask and mask.highest > MAX_ID:
            raise MalformedFile(self.path(name), text, f"a mask of ids up to {MAX_ID}")
        return mask

    def find_set(self, lists: Sequence[str], maps: Sequence[str]) -> Mask | None:
        """Return the set of the first file that exists, lists before hexadecimal maps."""
        for name in lists:
            found = self.find_list(name)
            if found is not None:
                return found
        for name in maps:
            found = self.find_map(name)
            if found is not None:
                return found
        return None

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if it is absent."""
        path = self._prefix + directory
        try:
            return sorted(os.listdir(path))  # noqa: PTH208  # Path objects are the slow part
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnreadableFile(path, error.strerror or str(error)) from error

    def numbered(self, directory: str, prefix: str) -> list[int]:
        """Return the ascending numbers of the entries `<prefix><number>` of a directory."""
        found = []
        for name in self.names(directory):
            digits = name.removeprefix(prefix)
            if name == digits or not (digits.isascii() and digits.isdigit()):
                continue
            if len(digits) > len(str(MAX_ID)) or int(digits) > MAX_ID:
                raise MalformedFile(self.path(directory), name, f"no number above {MAX_ID}")
            if digits == str(int(digits)):
                found.append(int(digits))
        return sorted(found)

    def is_directory(self, name: str) -> bool:
        """Tell whether a directory is there."""
        return os.path.isdir(self._prefix + name)  # noqa: PTH112  # as above

    def resolved(self, name: str) -> str | None:
        """Follow links and return the path inside the tree; None where it leaves the tree."""
        root = os.path.realpath(self._prefix)
        target = os.path.realpath(self._prefix + name)
        if root == "/":
            return target[1:]
        return target[len(root) + 1 :] if target.startswith(root + "/") else None


def _read(path: str) -> bytes:
    descriptor = os.open(path, _FLAGS)
    try:
        content = chunk = os.read(descriptor, _CHUNK)
        # The kernel hands out whole pages while there is more, so a broken page is the last.
        while chunk and len(content) % _PAGE == 0:
            if len(content) >= _LIMIT:
                raise OSError(errno.EFBIG, f"it is larger than {_LIMIT} bytes")
            chunk = os.read(descriptor, _CHUNK)
            content += chunk
    finally:
        os.close(descriptor)
    return content
