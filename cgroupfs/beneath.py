"""Opening paths that cannot leave a directory: openat2(2), or a walk where it is missing."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import lru_cache
from typing import Any, Final

_SYS_OPENAT2: Final = 437  # the same number on every architecture (added after unification)
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08

#: Opens a directory only as a starting point; does not follow a link in the last component.
DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYSCALL: Final = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_OpenHow),
    ctypes.c_size_t,
)
_RESOLVE: Final = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
_HOW_SIZE: Final = ctypes.sizeof(_OpenHow)
# A kernel before 5.6, or a seccomp filter that does not know the call.
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EPERM})


def open_beneath(root_fd: int, path: str, flags: int) -> int:
    """Open `path`, relative to the directory `root_fd`, without ever leaving it.

    `path` is a checked relative path (`cgroupfs.tree.check_path`), `""` the directory itself.
    No component may be a symbolic link (ELOOP) or lead out of the directory (EXDEV). Returns a
    file descriptor that the caller closes; raises `OSError` with the path as filename.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    fd = int(_SYSCALL(_SYS_OPENAT2, root_fd, os.fsencode(path or "."), _how(flags), _HOW_SIZE))
    if fd >= 0:
        return fd
    number = ctypes.get_errno()
    if number in _NOT_OFFERED:
        return open_by_walk(root_fd, path, flags)
    raise OSError(number, os.strerror(number), path)


@lru_cache(maxsize=16)
def _how(flags: int) -> Any:  # noqa: ANN401  # what ctypes.byref returns has no name
    """Return a reference to how to open with these flags; the kernel only reads it."""
    return ctypes.byref(_OpenHow(flags, 0, _RESOLVE))


def open_by_walk(root_fd: int, path: str, flags: int) -> int:
    """Open like `open_beneath`, one component at a time; for hosts without openat2(2)."""
    *parents, last = path.split("/") if path else ["."]
    directory = root_fd
    try:
        for part in parents:
            step = os.open(part, DIRECTORY, dir_fd=directory)
            if directory != root_fd:
                os.close(directory)
            directory = step
        return os.open(last, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        error.filename = path
        raise
    finally:
        if directory != root_fd:
            os.close(directory)
