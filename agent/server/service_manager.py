"""The service manager that started the agent: readiness, status line, watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import structlog

from systemd.notify import Notifier, watchdog_interval
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = structlog.get_logger(__name__)


class ServiceManager:
    """Notifies systemd (sd_notify(3)); a failed notification is logged and otherwise ignored.

    `ping_seconds` is the interval of watchdog pings, None without a watchdog.
    """

    def __init__(self, notifier: Notifier, ping_seconds: float | None) -> None:
        self.ping_seconds = ping_seconds
        self._notifier = notifier
        self._last_status = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the manager from `NOTIFY_SOCKET` and `WATCHDOG_USEC`; raises `SystemdError`."""
        return cls(Notifier(environment), watchdog_interval(environment))

    def ready(self, status: str) -> None:
        """Report that the agent is ready."""
        self._last_status = status
        self._attempt(lambda: self._notifier.ready(status))

    def status(self, text: str) -> None:
        """Report the status line if it changed."""
        if text != self._last_status:
            self._last_status = text
            self._attempt(lambda: self._notifier.status(text))

    def alive(self) -> None:
        """Ping the watchdog."""
        self._attempt(self._notifier.watchdog)

    def stopping(self) -> None:
        """Report that the agent is stopping."""
        self._attempt(self._notifier.stopping)

    @staticmethod
    def _attempt(call: Callable[[], None]) -> None:
        try:
            call()
        except SystemdError as error:
            log.warning("service manager notification failed", why=str(error))
