from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import __version__
from deploy.dependencies import licences, lock, sbom
from deploy.dependencies.__main__ import SBOM, direct
from deploy.dependencies.licences import Licensed
from deploy.dependencies.lock import Locked

if TYPE_CHECKING:
    from collections.abc import Mapping

VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


def shipped() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(SBOM.read_text(encoding="utf-8"))
    return document


def distribution_hashes(component: Mapping[str, Any]) -> set[str]:
    return {
        one["content"]
        for reference in component["externalReferences"]
        for one in reference["hashes"]
        if (reference["type"], one["alg"]) == ("distribution", "SHA-256")
    }


def test_the_bill_that_is_shipped_is_valid_cyclonedx_1_6() -> None:
    text = SBOM.read_text(encoding="utf-8")
    assert VALIDATOR.validate_str(text) is None
    assert (shipped()["bomFormat"], shipped()["specVersion"]) == ("CycloneDX", "1.6")


def test_the_bill_names_exactly_what_the_lock_pins_with_the_same_hashes() -> None:
    # Read by hand: whatever is in the lock and not of Windows alone.
    pins = re.split(r"(?m)^(?=\S)", lock.GRPC.read_text())
    expected = {
        f"pkg:pypi/{match[1]}@{match[2]}": set(re.findall("sha256:([0-9a-f]{64})", pin))
        for pin in pins
        if (match := re.match(r"([\w.-]+)==(\S+)", pin)) and "'win32'" not in pin
    }
    found = {one["purl"]: distribution_hashes(one) for one in shipped()["components"]}
    assert found == expected
    assert len(found) > 15


def test_every_component_has_version_licence_and_reference() -> None:
    for one in shipped()["components"]:
        assert one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}" == one["bom-ref"]
        [licence] = one["licenses"]
        assert licences.choose(licence["expression"])


def test_the_bill_is_of_this_version_and_leads_from_it_to_every_component() -> None:
    document = shipped()
    root = document["metadata"]["component"]["bom-ref"]
    assert root == f"pkg:pypi/numawarden@{__version__}"
    edges = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    reached, ahead = set(), [root]
    while ahead:
        reference = ahead.pop()
        if reference not in reached:
            reached.add(reference)
            ahead += edges[reference]
    assert reached - {root} == {one["bom-ref"] for one in document["components"]}


def test_the_dependencies_of_the_agent_itself_are_those_of_the_project() -> None:
    document = shipped()
    root = document["metadata"]["component"]["bom-ref"]
    [own] = [one["dependsOn"] for one in document["dependencies"] if one["ref"] == root]
    assert {re.match("pkg:pypi/(.*)@", one)[1] for one in own} == set(direct())  # type: ignore[index]


def test_only_what_an_extra_brings_is_optional() -> None:
    required = {one.name for one in lock.read()}
    extra = {one["name"] for one in shipped()["components"] if one.get("scope") == "optional"}
    assert extra == {one.name for one in lock.read(lock.GRPC)} - required
    assert extra >= {"grpcio", "protobuf"}


NAMES = ("a", "b", "c", "d", "e")
EXPRESSIONS = ("MIT", "Apache-2.0 AND MIT", "MIT OR Apache-2.0")
DIGESTS = st.integers(0, 2**256 - 1).map("{:064x}".format)


def licensed(name: str) -> st.SearchStrategy[Licensed]:
    return st.builds(
        lambda hashes, expression, requires: Licensed(
            Locked(name, "1", tuple(hashes)), expression, (("LICENSE", "text"),), tuple(requires)
        ),
        st.lists(DIGESTS, min_size=1, max_size=3, unique=True),
        st.sampled_from(EXPRESSIONS),
        st.lists(st.sampled_from([other for other in NAMES if other != name]), unique=True),
    )


#: All five packages; each may require any other, in circles too.
PACKAGES = st.tuples(*map(licensed, NAMES))


@settings(max_examples=20)  # the schema takes its time
@given(PACKAGES, st.permutations(range(len(NAMES))))
def test_the_same_dependencies_give_the_same_valid_bytes_in_any_order(
    packages: tuple[Licensed, ...], order: list[int]
) -> None:
    text = sbom.render(sbom.agent("1"), NAMES, packages)
    assert VALIDATOR.validate_str(text) is None
    other = [packages[index] for index in order]
    assert sbom.render(sbom.agent("1"), [one.locked.name for one in other], other) == text


@given(PACKAGES, st.integers(1, len(NAMES) - 1))
def test_another_set_of_dependencies_has_another_serial_number(
    packages: tuple[Licensed, ...], count: int
) -> None:
    texts = [sbom.render(sbom.agent("1"), NAMES, one) for one in (packages, packages[:count])]
    first, second = (json.loads(text)["serialNumber"] for text in texts)
    assert first != second
