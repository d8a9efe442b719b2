"""docs/openapi.json describes the API that the agent serves."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from agent.api.documents import AdmissionDocument, ErrorBody, ErrorDocument, encode
from agent.server import errors
from agent.server import handlers as api
from tests.docs.openapi import PAGE, errors_in, openapi_text, routes_in, served

DOCUMENT: dict[str, Any] = json.loads(openapi_text())
METHODS = {"get", "post", "put", "delete"}


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    }


def codes() -> dict[str, set[str]]:
    """Return the codes of errors by their status."""
    responses = DOCUMENT["components"]["responses"]
    return {
        name.removeprefix("Error"): set(each["x-error-codes"]) for name, each in responses.items()
    }


def test_it_is_a_valid_openapi_document() -> None:
    validate(dict(DOCUMENT.items()))
    assert DOCUMENT["openapi"].startswith("3.1")


def test_it_has_every_route_and_parameter_of_the_agent_and_no_other() -> None:
    described = {
        route: {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        for route, operation in operations().items()
    }
    assert described == {route: set(known) for route, known in served().items()}


def test_it_has_every_code_that_the_agent_gives_an_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    given = {kind.code for kind in kinds if issubclass(kind, errors.RequestError)}
    given |= {*api._STATUS, *api._CODE.values(), *api._CODE_BELOW.values()}
    assert len(given) > 10
    assert given - set().union(*codes().values()) == set()


def test_errors_have_the_status_that_the_agent_answers() -> None:
    wrong = {
        code: status
        for code, status in api._STATUS.items()
        if code not in codes()[str(status.value)]
    }
    assert wrong == {}


def test_every_answer_of_a_request_has_a_schema() -> None:
    for operation in operations().values():
        answers = [each for each in operation["responses"].values() if "content" in each]
        assert answers
        assert all("schema" in content for each in answers for content in each["content"].values())


def test_a_rejection_is_described_as_the_document_that_it_is() -> None:
    conflict = operations()["POST", "/v1/pods"]["responses"]["409"]
    reference = conflict["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith(f"/{AdmissionDocument.__name__}")


def test_documents_meet_their_schemas() -> None:
    schema = {"$ref": "#/components/schemas/ErrorDocument", "components": DOCUMENT["components"]}
    sent = json.loads(
        encode(ErrorDocument(error=ErrorBody(code="PodNotFound", message="no such pod")))
    )
    jsonschema.validate(sent, schema)
    del sent["error"]["code"]
    with pytest.raises(jsonschema.ValidationError, match="'code' is a required property"):
        jsonschema.validate(sent, schema)


def test_a_row_that_names_an_unknown_document_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.openapi.ANSWERS", {})
    with pytest.raises(LookupError, match="GET /v1/pods"):
        openapi_text()


def test_rows_of_one_request_are_one_route() -> None:
    rows = (
        "| `POST /v1/a` | do it | 200: *x* |\n"
        "| `POST /v1/a?dryRun=true` | try it | 200: *x* |\n"
        "| `GET /v1/a/{uid}` | see it | 200: *y* |\n"
    )
    assert [(each.key, each.does) for each in routes_in(rows)] == [
        (("POST", "/v1/a"), "do it\n\ntry it"),
        (("GET", "/v1/a/{uid}"), "see it"),
    ]


def test_codes_are_read_with_their_status() -> None:
    rows = "| 404 | `A`, `B` | gone |\n| 405 | `C` | |\n"
    section = f"# x\n\n## Errors\n\n{rows}\n## Y\n\n| 500 | `D` | |\n"
    assert errors_in(section) == {"404": [("A", "gone"), ("B", "gone")], "405": [("C", "")]}
    assert "404" in errors_in(PAGE.read_text())
