"""docs/openapi.json describes the API that the agent serves."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from agent.api.documents.admissions import AdmissionDocument
from agent.api.documents.document import encode
from agent.api.documents.errors import ErrorBody, ErrorDocument
from agent.server import errors
from agent.server.answers import CODES_WITHOUT_HANDLER, HTTP_CODES, STATUSES
from tests.docs.openapi import openapi_text, served

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


def test_it_has_every_code_that_the_agent_gives_an_error_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    given = {kind.code for kind in kinds if issubclass(kind, errors.RequestError)}
    given |= {*STATUSES, *HTTP_CODES.values(), *CODES_WITHOUT_HANDLER.values()}
    assert len(given) > 10
    assert given - set().union(*codes().values()) == set()
    wrong = [code for code, is_ in STATUSES.items() if code not in codes()[str(is_.value)]]
    assert wrong == []


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
