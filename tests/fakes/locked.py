"""One lock around fakes that several threads use, as the kernel and systemd have theirs."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

#: `threading.RLock` is a function before Python 3.13.
_Lock = Any
_Fake = TypeVar("_Fake")


class _Locked:
    """A fake whose methods are called one at a time, among all that share the lock."""

    def __init__(self, fake: object, lock: _Lock) -> None:
        self._fake = fake
        self._lock = lock

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # of any fake
        found = getattr(self._fake, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def alone(*args: object, **kwargs: object) -> object:
            with self._lock:
                return found(*args, **kwargs)

        return alone


def locked(fake: _Fake, lock: _Lock) -> _Fake:
    return cast("_Fake", _Locked(fake, lock))
