from __future__ import annotations

import pytest

from agent.config.load import load_config
from agent.yaml import DocumentError

RESOURCE = "numawarden.dev/exclusive"


def mistakes(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_config(text, "x")
    return [f"{each.path}: {each.message}" for each in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "resource"),
    [("{}", RESOURCE), ('{exclusiveResource: ""}', ""), ("{exclusiveResource: a.b/c}", "a.b/c")],
)
def test_the_resource_is_offered_unless_it_is_empty(text: str, resource: str) -> None:
    config = load_config(f"agent: {{kubelet: {text}}}", "x")
    assert config.agent.kubelet.exclusive_resource == resource


@pytest.mark.parametrize("name", ["cpu", "exclusive", "kubernetes.io/x", "a.b/c/d", "a b/c"])
def test_what_is_not_an_extended_resource_is_rejected_in_its_place(name: str) -> None:
    [mistake] = mistakes(f"agent: {{kubelet: {{exclusiveResource: {name}}}}}")
    assert mistake.startswith(
        f'agent.kubelet.exclusiveResource: "{name}" is not an extended resource: '
    )


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (f"devices: {{{RESOURCE}: [{{id: a}}]}}", "agent.devices"),
        (f"hostDevices: {{{RESOURCE}: [{{driver: a}}]}}", "agent.hostDevices"),
        (f"ignoredResources: [{RESOURCE}]", "agent.ignoredResources"),
    ],
)
def test_the_resource_of_pods_that_opt_in_has_no_devices(other: str, key: str) -> None:
    [mistake] = mistakes(f"agent: {{kubelet: {{enabled: true}}, {other}}}")
    assert mistake.startswith(f"agent.kubelet.exclusiveResource: {RESOURCE} is in {key}, too")
    load_config(f"agent: {{kubelet: {{enabled: false}}, {other}}}", "x")
    other_name = "{enabled: true, exclusiveResource: x.y/z}"
    load_config(f"agent: {{kubelet: {other_name}, {other}}}", "x")
