"""Where a process may run, looked at again and again while something else is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tests.guest.inside import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from tests.guest.inside.workloads import Workload

#: Between two readings, in seconds.
PAUSE: Final = 0.05


class Watch:
    """A context in which processes are looked at by a thread; `seen` has all it found.

    `seen` is by workload: each set of CPUs in which its process was allowed to run.
    """

    def __init__(self, workloads: Iterable[Workload]) -> None:
        self._workloads = tuple(workloads)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: dict[str, set[frozenset[int]]] = {one.name: set() for one in self._workloads}
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
            for one in self._workloads:
                self.seen[one.name].add(kernel.affinity(one.pid))
            self.looks += 1
