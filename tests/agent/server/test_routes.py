from __future__ import annotations

import asyncio

import pytest

from agent.server.http import (
    HttpError,
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
    return Response(repr(sorted(request.parameters.items())).encode())


async def other(_request: Request) -> Response:
    return Response(b"other")


ROUTES = Routes(
    [
        ("GET", "/pods", other),
        ("POST", "/pods", other),
        ("GET", "/pods/{uid}", parameters),
        ("POST", "/pods/{uid}/containers/{name}/bind", parameters),
    ]
)


def test_parameters_are_checked_where_they_are_declared() -> None:
    routes = Routes([("GET", "/a", other), ("GET", "/b", other)], {("GET", "/a"): ("x",)})
    for target, unknown in (("/a?x=1&x=2", None), ("/a?x&y=1", "y"), ("/b?x", "x"), ("/b", None)):
        request = Request("GET", RequestTarget.parse(target), nothing)
        if unknown is None:
            assert isinstance(asyncio.run(routes(request)), Response)
        else:
            with pytest.raises(UnknownParameterError) as caught:
                asyncio.run(routes(request))
            assert caught.value.details == (Mistake(unknown, "unknown"),)


def answer(method: str, target: str) -> str:
    request = Request(method, RequestTarget.parse(target), nothing)
    response = asyncio.run(ROUTES(request))
    assert isinstance(response, Response)
    return response.body.decode()


@pytest.mark.parametrize(
    ("target", "segments"),
    [
        ("/v1/pods", ("v1", "pods")),
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


def test_the_handler_is_found_by_method_and_path() -> None:
    assert answer("GET", "/pods") == "other"
    assert answer("GET", "/pods/u-1") == "[('uid', 'u-1')]"
    assert answer("POST", "/pods/a%2Fb/containers/c/bind?x=1") == "[('name', 'c'), ('uid', 'a/b')]"


@pytest.mark.parametrize("target", ["/", "/pod", "/pods/", "/pods/a/b", "//pods", "*"])
def test_an_unknown_path_is_not_found(target: str) -> None:
    with pytest.raises(NotFoundError):
        answer("GET", target)


def test_a_method_that_is_not_possible_is_answered_with_those_that_are() -> None:
    with pytest.raises(MethodNotAllowedError) as caught:
        answer("DELETE", "/pods")
    error: HttpError = caught.value
    assert error.headers == (("Allow", "GET, POST"),)
    assert str(error) == "DELETE is not possible here; use GET, POST"
