"""The API server on the host, as an administrator asks it from the guest."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError

from tests.guest.inside.checks import STUCK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.guest.inside.guest import Guest

#: Where in the job the files of a control plane are.
CONTROL_PLANE: Final = "control-plane"
POD: Final = "/api/v1/namespaces/default/pods"
MERGE: Final = "application/strategic-merge-patch+json"


class ApiServerRejectedError(Exception):
    """The API server rejected a request."""


class ApiServer:
    """Asks the API server; the files of `tests/guest/kubernetes/control_plane.py` say where."""

    def __init__(self, guest: Guest) -> None:
        self.files = guest.job / CONTROL_PLANE
        self.url = self._read("server")
        self._trust = ssl.create_default_context(cafile=self.files / "ca.crt")
        self._token = self._read("admin.token")

    def get(self, path: str) -> dict[str, Any]:
        """Return an object or a list; raises `ApiServerRejectedError`."""
        return self._ask("GET", path)

    def create(self, path: str, what: Mapping[str, object]) -> dict[str, Any]:
        """Create an object in a collection and return it; raises `ApiServerRejectedError`."""
        return self._ask("POST", path, what)

    def patch(self, path: str, what: Mapping[str, object]) -> dict[str, Any]:
        """Change an object by a strategic merge and return it; raises `ApiServerRejectedError`."""
        return self._ask("PATCH", path, what)

    def delete(self, path: str) -> None:
        """Delete an object; raises `ApiServerRejectedError`."""
        self._ask("DELETE", path)

    def kubeconfig(self) -> Path:
        """Return the administrator's configuration for kubectl."""
        return self.files / "admin.kubeconfig"

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the namespace `default`."""
        listed: list[dict[str, Any]] = self.get(POD)["items"]
        return listed

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the Events on a pod, the oldest first."""
        about = f"fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3D{name}"
        items = self.get(f"/api/v1/namespaces/default/events?{about}")["items"]
        return sorted(items, key=lambda item: item["metadata"]["creationTimestamp"])

    def _read(self, name: str) -> str:
        return Path(self.files, name).read_text().strip()

    def _ask(
        self, method: str, path: str, what: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        content = "application/json" if method == "POST" else MERGE
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        body = json.dumps(what).encode() if what is not None else None
        request = urllib.request.Request(  # noqa: S310 - always https
            self.url + path, body, headers, method=method
        )
        try:
            with urllib.request.urlopen(  # noqa: S310 - always https
                request, timeout=STUCK, context=self._trust
            ) as reply:
                answer: dict[str, Any] = json.load(reply)
        except HTTPError as error:
            raise ApiServerRejectedError(
                f"{method} {path}: {error.code} {error.read().decode()}"
            ) from error
        return answer
