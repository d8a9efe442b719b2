from __future__ import annotations

import asyncio

import pytest

from agent.server.http import (
    MethodNotAllowedError,
    NotFoundError,
    Request,
    RequestTarget,
    Response,
    Routes,
    UnknownParameterError,
)
from agent.yaml import Mistake


async def nothing() -> bytes:
    return b""


async def parameters(request: Request) -> Response:
    return Response(repr(sorted(request.path_parameters.items())).encode())


async def other(_request: Request) -> Response:
    return Response(b"other")


ROUTES = Routes(
    [
        ("GET", "/pods", other),
        ("POST", "/pods", other),
        ("GET", "/pods/{uid}", parameters),
        ("POST", "/pods/{uid}/containers/{name}/bind", parameters),
    ],
    {("POST", "/pods/{uid}/containers/{name}/bind"): ("x",)},
)


def answer(method: str, target: str) -> str:
    request = Request(method, RequestTarget.parse(target), nothing)
    response = asyncio.run(ROUTES(request))
    assert isinstance(response, Response)
    return response.body.decode()


@pytest.mark.parametrize(
    ("target", "segments"),
    [
        ("/", ("",)),
        ("//v1//", ("", "v1", "", "")),
        ("/a%2Fb/%c3%a4", ("a/b", "ä")),
        ("/a?b#c", ("a",)),
        ("http://agent/v1/pods?x", ("v1", "pods")),
        ("http://agent", ("",)),
        ("*", ("*",)),
    ],
)
def test_a_path_is_split_before_it_is_decoded(target: str, segments: tuple[str, ...]) -> None:
    assert RequestTarget.parse(target).segments == segments


def test_a_query_keeps_what_is_empty_and_what_comes_twice() -> None:
    query = RequestTarget.parse("/a?b=1&b=%202&c=&d").query
    assert query == (("b", "1"), ("b", " 2"), ("c", ""), ("d", ""))


def test_the_handler_is_found_by_method_and_path_and_knows_its_parameters() -> None:
    assert answer("GET", "/pods") == "other"
    assert answer("GET", "/pods/u-1") == "[('uid', 'u-1')]"
    bind = "/pods/a%2Fb/containers/c/bind"
    assert answer("POST", f"{bind}?x=1&x") == "[('name', 'c'), ('uid', 'a/b')]"
    for method, target, unknown in (("POST", f"{bind}?x&y=1", "y"), ("GET", "/pods?x", "x")):
        with pytest.raises(UnknownParameterError) as caught:
            answer(method, target)
        assert caught.value.details == (Mistake(unknown, "unknown"),)


@pytest.mark.parametrize("target", ["/", "/pods/", "/pods/a/b", "//pods", "*"])
def test_an_unknown_path_is_not_found(target: str) -> None:
    with pytest.raises(NotFoundError):
        answer("GET", target)


def test_a_method_that_is_not_possible_is_answered_with_those_that_are() -> None:
    with pytest.raises(MethodNotAllowedError) as caught:
        answer("DELETE", "/pods")
    assert caught.value.headers == (("Allow", "GET, POST"),)
    assert str(caught.value) == "DELETE is not possible here; use GET, POST"
