from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from agent.api import documents
from agent.api.documents.admissions import BindRequest
from agent.api.documents.document import Document, decode, encode
from agent.api.documents.history import EventDocument
from agent.api.documents.kernel import EnforcementDocument, KernelDocument
from agent.api.documents.verification import ReconcileDocument

DOCUMENTS = {
    kind
    for module in pkgutil.iter_modules(documents.__path__, "agent.api.documents.")
    for kind in vars(import_module(module.name)).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not Document
}
REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


@pytest.mark.parametrize("kind", sorted(DOCUMENTS, key=str), ids=lambda kind: kind.__name__)
def test_every_field_of_a_document_stands_in_the_reference(kind: type[msgspec.Struct]) -> None:
    schemas = json.loads(REFERENCE.read_text())["components"]["schemas"]
    described = {name for schema in schemas.values() for name in schema.get("properties", ())}
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert fields <= described


def test_fields_that_a_later_release_adds_are_ignored_in_answers_alone() -> None:
    text = b'{"type":"New","time":1,"operation":"","later":[1]}'
    assert decode(text, EventDocument).type == "New"
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decode(b'{"cgruop":"/a"}', BindRequest)


def test_names_are_in_camel_case() -> None:
    document = EnforcementDocument(enforced=True)
    assert encode(document) == b'{"enforced":true,"differences":[],"notes":[]}'
    assert b'"cpusEffective"' in encode(KernelDocument(cgroup="/a"))


@pytest.mark.parametrize(
    ("text", "sent"),
    [("caf\udce9", "caf\\xe9"), ("\ud800", "\\ud800"), ("caf\u00e9\udcff", "caf\u00e9\\xff")],
)
def test_a_name_that_is_not_utf_8_is_sent_escaped_wherever_it_stands(text: str, sent: str) -> None:
    def document(name: str) -> ReconcileDocument:
        return ReconcileDocument(
            found={name: 1}, repaired={}, differences=(name,), notes=(), finished=0.5, seconds=0
        )

    assert decode(encode(document(text)), ReconcileDocument) == document(sent)
