from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent.api import documents as wire

DOCUMENTS = [
    kind
    for kind in vars(wire).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not wire.Document
]
REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_document_stands_in_the_reference(kind: type[msgspec.Struct]) -> None:
    schemas = json.loads(REFERENCE.read_text())["components"]["schemas"]
    described = {name for schema in schemas.values() for name in schema.get("properties", ())}
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert fields <= described


def test_fields_that_a_later_release_adds_are_ignored_in_answers_alone() -> None:
    text = b'{"type":"New","time":1,"operation":"","later":[1]}'
    assert wire.decode(text, wire.EventDocument).type == "New"
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        wire.decode(b'{"cgruop":"/a"}', wire.BindRequest)


def test_names_are_in_camel_case() -> None:
    document = wire.EnforcementDocument(enforced=True)
    assert wire.encode(document) == b'{"enforced":true,"differences":[],"notes":[]}'
    assert b'"cpusEffective"' in wire.encode(wire.KernelDocument(cgroup="/a"))


@pytest.mark.parametrize(
    ("text", "sent"),
    [("caf\udce9", "caf\\xe9"), ("\ud800", "\\ud800"), ("caf\u00e9\udcff", "caf\u00e9\\xff")],
)
def test_a_name_that_is_not_utf_8_is_sent_escaped_wherever_it_stands(text: str, sent: str) -> None:
    def document(name: str) -> wire.ReconcileDocument:
        return wire.ReconcileDocument(
            found={name: 1}, repaired={}, differences=(name,), notes=(), finished=0.5, seconds=0
        )

    assert wire.decode(wire.encode(document(text)), wire.ReconcileDocument) == document(sent)
