"""Where a process may run, looked at again and again while something else is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

#: Between two readings, in seconds.
PAUSE: Final = 0.02


class Watch:
    """A context in which processes, given by name, are looked at by a thread.

    `seen` has all it found by name: each set of CPUs in which the process was allowed to run.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: dict[str, set[frozenset[int]]] = {name: set() for name in self._processes}
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            for name, pid in self._processes.items():
                self.seen[name].add(kernel.affinity(pid))
            self.looks += 1
