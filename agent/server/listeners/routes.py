"""Routes requests to handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.server.listeners.errors import (
    MethodNotAllowedError,
    NotFoundError,
    UnknownParameterError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.server.listeners.messages import Answer, Handler, Request, RequestTarget


class Routes:
    """Handlers by method and path; `{name}` in a path stands for any one segment, not empty.

    `parameters` are the allowed query parameters by method and path (none if not listed); None
    allows any.
    """

    def __init__(
        self,
        handlers: Iterable[tuple[str, str, Handler]],
        parameters: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
    ) -> None:
        self._handlers = [
            (
                method,
                tuple(path.removeprefix("/").split("/")),
                handler,
                None if parameters is None else parameters.get((method, path), ()),
            )
            for method, path, handler in handlers
        ]

    async def __call__(self, request: Request) -> Answer:
        """Call the handler of a request; raises one of `agent.server.listeners.errors`."""
        found = {
            method: (parameters, handler, known)
            for method, pattern, handler, known in self._handlers
            if (parameters := _match(pattern, request.target)) is not None
        }
        if not found:
            raise NotFoundError(request.target.path)
        if request.method not in found:
            raise MethodNotAllowedError(request.method, tuple(sorted(found)))
        parameters, handler, known = found[request.method]
        for name, _ in request.target.query:
            if known is not None and name not in known:
                raise UnknownParameterError(name, known)
        return await handler(replace(request, parameters=parameters))


def _match(pattern: tuple[str, ...], target: RequestTarget) -> dict[str, str] | None:
    """Return the named segments, None if the path does not match."""
    if len(pattern) != len(target.segments):
        return None
    parameters = {}
    for desired, segment in zip(pattern, target.segments, strict=True):
        if desired.startswith("{") and segment:
            parameters[desired.strip("{}")] = segment
        elif desired != segment:
            return None
    return parameters
