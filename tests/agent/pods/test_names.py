from __future__ import annotations

import pytest

from agent.pods.model import (
    extended_resource_fault,
    label_fault,
    prefixed_resource_fault,
    subdomain_fault,
    uid_fault,
)


@pytest.mark.parametrize("text", ["a", "0", "a-b", "a" * 63])
def test_dns_labels(text: str) -> None:
    assert label_fault(text) is None


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "é"])
def test_what_is_not_a_dns_label(text: str) -> None:
    assert label_fault(text) is not None


@pytest.mark.parametrize("text", ["a.b-c.d", "a" * 253])
def test_dns_subdomains(text: str) -> None:
    assert subdomain_fault(text) is None


@pytest.mark.parametrize("text", ["", "a..b", ".a", "a.", "a.-b", "a" * 254, "A.b"])
def test_what_is_not_a_dns_subdomain(text: str) -> None:
    assert subdomain_fault(text) is not None


@pytest.mark.parametrize("text", ["7b0c6f9e-2f0a-4a9c-8d5e-0e8f4b6a1c2d", "a", "A.b", "0" * 128])
def test_uids(text: str) -> None:
    assert uid_fault(text) is None


@pytest.mark.parametrize(
    "text", ["", "..", "a..b", "a/b", "-a", "a.", "a_b", "a b", "0" * 129, "a\n"]
)
def test_what_is_not_a_uid(text: str) -> None:
    assert uid_fault(text) is not None


#: A domain so long that "requests." before it still makes a name (253 characters).
LONGEST = "a." * 121 + "aa"


@pytest.mark.parametrize(
    "text", ["example.com/gpu", "a/B_c.d", "x.kubernetes.iox/y", f"{LONGEST}/x"]
)
def test_extended_resources(text: str) -> None:
    assert extended_resource_fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("gpu", "/gpu", "a/", "a/b/c", "kubernetes.io/x", "y.kubernetes.io/x", "xkubernetes.io/y"),
        *("requests.a.b/x", "requests.kubernetes.io/x", "A/b", f"{LONGEST}a/x"),
    ],
)
def test_what_is_not_a_extended_resource(text: str) -> None:
    assert extended_resource_fault(text) is not None


@pytest.mark.parametrize(
    "text",
    ["kubernetes.io/x", "y.kubernetes.io/X_1", "xkubernetes.io/y", "requests.kubernetes.io/x"],
)
def test_resources_of_kubernetes_are_resources_of_containers(text: str) -> None:
    assert prefixed_resource_fault(text) is None


@pytest.mark.parametrize("text", ["kubernetes.io/", "kubernetes.io/x/y", "Y.kubernetes.io/x"])
def test_what_is_not_a_name_is_not_a_resource_of_kubernetes(text: str) -> None:
    assert prefixed_resource_fault(text) is not None
