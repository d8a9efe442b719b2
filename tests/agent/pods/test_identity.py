from __future__ import annotations

import pytest

from agent.pods.manifest import load_pod
from agent.pods.model import NO_IDENTITY, ManifestError, PodIdentity, full_name, name_and_uid


def spoken_of(text: str) -> PodIdentity:
    with pytest.raises(ManifestError) as caught:
        load_pod(text, "test")
    return caught.value.identity


def without_containers(metadata: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec: {{containers: []}}\n"


@pytest.mark.parametrize(
    ("metadata", "identity"),
    [
        ("{name: web, namespace: shop, uid: u-1}", PodIdentity("u-1", "web", "shop")),
        ("{name: web}", PodIdentity("", "web", "default")),
        ("{uid: u-1}", PodIdentity("u-1")),
    ],
)
def test_an_invalid_manifest_still_says_of_whom(metadata: str, identity: PodIdentity) -> None:
    assert spoken_of(without_containers(metadata)) == identity


def test_a_pod_whose_name_is_not_known_is_named_by_its_uid() -> None:
    named, unnamed = PodIdentity("u-1", "web", "shop"), PodIdentity("u-1")
    assert (full_name(named), name_and_uid(named)) == ("shop/web", "shop/web (uid u-1)")
    assert (full_name(unnamed), name_and_uid(unnamed)) == ("uid u-1", "uid u-1")


def test_another_kind_of_object_has_a_name_too() -> None:
    assert spoken_of("kind: Node\nmetadata: {name: n}\n").name == "n"


@pytest.mark.parametrize("text", ["[", "- 1\n", "kind: [\n", "metadata: web\n", "{}"])
def test_what_does_not_say_has_no_identity(text: str) -> None:
    assert spoken_of(text) == NO_IDENTITY


@pytest.mark.parametrize(
    "metadata",
    [
        f"{{name: {'x' * 254}, uid: {'u' * 254}}}",
        '{name: "a\\eb", uid: "a\\nb"}',
        "{name: [web], uid: {a: b}}",
        '{name: 7, uid: "../../etc"}',
        '{uid: "a b"}',
        "{name: null}",
    ],
)
def test_no_text_that_is_not_a_name_goes_on(metadata: str) -> None:
    assert spoken_of(without_containers(metadata)) == NO_IDENTITY
