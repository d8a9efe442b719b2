"""Fingerprints and hashes that others published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.fingerprint import pod_fingerprint, xxh64

#: Sets of pods with the fingerprints that the tests of the Go package have (tracing_test.go, and
#: the compat files of its testdata).
PUBLISHED = {
    "pfp0v001b92008c14168b3a6": ("ns1/n1", "ns1/n2", "ns2/n1", "ns3/n1", "ns3/n2"),
    "pfp0v001607b76a0e9d3aeb4": (
        "production/jaeger-dpgjk",
        "production/nginx-rt684",
        "production/envoy-g9m22",
    ),
    "pfp0v001567144e4a561bb5a": (
        "analytics/controller-69dkj",
        "kube-public/subscriber-tq6v7",
        "kube-public/transformer-hfbng",
        "kube-public/validator-c6pn5",
        "kube-system/proxy-wszrd",
        "middleware/processor-jkrl4",
        "network/gateway-vsll5",
        "network/importer-kzdfr",
        "network/importer-q5vt9",
        "staging/prometheus-bwgbn",
    ),
}

_PODS = st.lists(st.tuples(st.text(max_size=70), st.text(max_size=70)), max_size=6)


def named(pods: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(namespace, name) for namespace, _, name in (pod.partition("/") for pod in pods)]


@pytest.mark.parametrize(("fingerprint", "pods"), PUBLISHED.items())
def test_the_fingerprint_is_that_of_the_go_package(fingerprint: str, pods: tuple[str, ...]) -> None:
    assert pod_fingerprint(named(pods)) == fingerprint
    assert pod_fingerprint(reversed(named(pods))) == fingerprint


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"The quick brown fox jumps over the lazy dog", 0x0B242D361FDA71BC),
    ],
)
def test_the_hash_is_xxh64(content: bytes, expected: int) -> None:
    assert xxh64(content) == expected


@given(_PODS, st.randoms())
def test_the_order_of_pods_does_not_matter(pods: list[tuple[str, str]], random: object) -> None:
    shuffled = list(pods)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' Random
    assert pod_fingerprint(shuffled) == pod_fingerprint(pods)


@given(_PODS, st.tuples(st.text(max_size=70), st.text(max_size=70)))
def test_one_more_pod_changes_it(pods: list[tuple[str, str]], more: tuple[str, str]) -> None:
    assert pod_fingerprint([*pods, more]) != pod_fingerprint(pods)
