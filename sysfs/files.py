"""Reading one small file of a tree: quickly, whole, and with errors that name it.

An error has the file, what was found and what to do.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Final, TypeVar

from sysfs.mask import MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
#: More odd files than this are counted and not listed: one cause can concern every CPU.
_MOST_WARNINGS: Final = 20

T = TypeVar("T")
D = TypeVar("D")


class SysfsTree:
    """The files below one root directory, named by their path without a leading slash.

    Every method that reads raises `UnreadableFile` where the system rejects or a link leads out
    of the root, and `MalformedFile` where the content is not of the named form. What stands
    outside of the root belongs to another host and is never read.
    """

    __slots__ = ("_odd", "_places", "_prefix", "_root")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        prefix = os.fspath(root)
        self._prefix = prefix if prefix.endswith("/") else prefix + "/"
        self._root = os.path.realpath(prefix)
        #: Where directories really are, by name; of the live root nothing is outside.
        self._places: dict[str, str] = {}
        self._odd: dict[str, str] = {}

    def optional(self, read: Callable[[], T], default: D, without: str) -> T | D:
        """Return what `read` returns; where a file is odd, the default and a warning.

        For facts without which a host is still a host. `without` ends the warning: what is not
        known now, or what is taken instead.
        """
        try:
            return read()
        except SysfsError as error:
            self.warn(error.path, error.found, without)
            return default

    def warn(self, path: str, found: str, without: str) -> None:
        """Keep a warning about a file; the first of each file stays."""
        self._odd.setdefault(path, f"{path}: {found}; {without}")

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each odd file, at most 20 and one that counts the others."""
        lines = tuple(self._odd.values())
        more = len(lines) - _MOST_WARNINGS
        if more <= 0:
            return lines
        return (*lines[:_MOST_WARNINGS], f"{self._prefix}: {more} more files are odd")

    def path(self, name: str) -> str:
        """Return where a file of the tree is."""
        return self._prefix + name

    def find(self, name: str) -> str | None:
        """Return a file's text without surrounding white space and NULs; None if absent."""
        path = self._prefix + name
        try:
            content = _read(path if self._root == "/" else self._file(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableFile(path, error.strerror or str(error)) from error
        try:
            return content.decode("ascii").strip("\0 \t\n")
        except UnicodeDecodeError as error:
            raise MalformedFile(path, content.decode("latin-1"), "plain text") from error

    def exists(self, name: str) -> bool:
        """Return whether anything of this name exists, of whatever file type."""
        return os.path.lexists(self._place(name.rpartition("/")[0]) + "/" + name.rpartition("/")[2])

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
        found = self.find_named_set(lists, maps)
        return None if found is None else found[1]

    def find_named_set(self, lists: Sequence[str], maps: Sequence[str]) -> tuple[str, Mask] | None:
        """Return the path and the set of the first file that exists, lists before maps."""
        for name in lists:
            found = self.find_list(name)
            if found is not None:
                return self.path(name), found
        for name in maps:
            found = self.find_map(name)
            if found is not None:
                return self.path(name), found
        return None

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if it is absent."""
        path = self._prefix + directory
        try:
            return sorted(os.listdir(self._place(directory)))  # noqa: PTH208  # Path is slow
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
        """Return whether a directory is there."""
        return os.path.isdir(self._place(name))  # noqa: PTH112  # as above

    def resolved(self, name: str) -> str | None:
        """Follow links and return the path inside the tree; None where it leaves the tree."""
        target = os.path.realpath(self._prefix + name)
        if self._root == "/":
            return target[1:]
        return target[len(self._root) + 1 :] if self._is_inside(target) else None

    def link_name(self, name: str) -> str | None:
        """Return the last name of what a link points to; None if there is nothing of this name.

        The link is not followed, so it may lead out of the tree: `driver` of an unpacked capture
        names the driver even where the capture does not contain it.
        """
        path = self._prefix + name
        parent, _, last = name.rpartition("/")
        try:
            target = os.readlink(f"{self._place(parent).rstrip('/')}/{last}")  # noqa: PTH115  # as above
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UnreadableFile(path, error.strerror or str(error)) from error
        return target.rstrip("/").rpartition("/")[2]

    def _is_inside(self, real: str) -> bool:
        return real.startswith(self._root + "/")

    def _place(self, directory: str) -> str:
        """Return where a directory really is, asking for each of its parents once."""
        if self._root == "/" or not directory:
            return self._prefix + directory
        place = self._places.get(directory)
        if place is None:
            parent, _, last = directory.rpartition("/")
            place = f"{self._place(parent).rstrip('/')}/{last}"
            if os.path.islink(place):  # noqa: PTH114  # as above
                place = self._followed(place, directory)
            self._places[directory] = place
        return place

    def _file(self, name: str) -> str:
        """Return what to open for a file, never anything that acts when it is opened."""
        parent, _, last = name.rpartition("/")
        path = f"{self._place(parent).rstrip('/')}/{last}"
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            path = self._followed(path, name)
            mode = os.stat(path).st_mode  # noqa: PTH116  # as above
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UnreadableFile(self._prefix + name, "it is not a regular file")
        return path

    def _followed(self, link: str, name: str) -> str:
        target = os.path.realpath(link)
        if not self._is_inside(target):
            raise UnreadableFile(self._prefix + name, "it leads out of the tree")
        return target


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
