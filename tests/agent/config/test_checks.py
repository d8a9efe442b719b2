from __future__ import annotations

from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.config import checks
from agent.config.checks import notes_on
from agent.config.config import Config, ConfigError
from agent.config.file import load_config

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_NINE = "{max-allowable-numa-nodes: 9}"
_ALIGNED = """
cpuManagerPolicy: static
cpuManagerPolicyOptions: {align-by-socket: true}
featureGates: {CPUManagerPolicyAlphaOptions: true}
reservedSystemCPUs: "0"
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("featureGates: {NodeSwap: true}", "featureGates.NodeSwap changes nothing"),
        (
            f"topologyManagerPolicyOptions: {_NINE}\ntopologyManagerPolicy: restricted",
            "max-allowable-numa-nodes is not needed",
        ),
        (
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}",
            "topologyManagerPolicyOptions change nothing",
        ),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 1}}]", "reservedMemory changes nothing"),
        ("topologyManagerScope: pod", "topologyManagerScope pod changes nothing"),
        (
            _ALIGNED,
            "align-by-socket with topologyManagerPolicy none chooses CPUs of one socket",
        ),
        ("evictionHard: {nodefs.available: 5%}", "only memory.available counts"),
        ("featureGates: {PodLevelResourceManagers: true}", "no budget is divided"),
    ],
)
def test_what_changes_nothing_is_noted(text: str, words: str) -> None:
    (note,) = notes_on(load_config(text, "x"))
    assert words in note


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_a_scope_and_an_option_that_a_policy_uses_are_not(policy: str) -> None:
    text = f"{_ALIGNED}\ntopologyManagerPolicy: {policy}\ntopologyManagerScope: pod"
    assert not list(notes_on(load_config(text, "x")))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7"])  # noqa: S104  # as data
def test_a_listener_that_others_reach_without_tls_is_noted(address: str) -> None:
    (note,) = notes_on(load_config(f'agent: {{metrics: {{address: "{address}"}}}}', "x"))
    assert f"agent.metrics.address {address} is served in plain HTTP" in note


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.1.2.3"])
def test_a_listener_that_the_host_alone_reaches_is_not(address: str) -> None:
    assert not list(notes_on(load_config(f'agent: {{metrics: {{address: "{address}"}}}}', "x")))


def test_a_listener_that_speaks_tls_is_not() -> None:
    files = 'tlsCertificate: "/a", tlsKey: "/b"'
    text = f'agent: {{metrics: {{address: "192.0.2.7", {files}}}}}'
    assert not list(notes_on(load_config(text, "x")))


def test_metrics_are_for_the_host_alone_unless_asked_otherwise() -> None:
    assert ip_address(load_config("{}", "x").agent.metrics.address).is_loopback


def test_nothing_is_noted_of_the_defaults() -> None:
    assert not list(notes_on(load_config("{}", "x")))


@pytest.mark.parametrize(
    ("missing", "named"),
    [("grpc", "needs grpcio, not"), ("google.protobuf", "needs protobuf, not")],
)
def test_podresources_needs_the_extra_and_the_mistake_says_how_to_get_it(
    missing: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(module: str) -> ModuleSpec | None:
        if module == missing:
            raise ModuleNotFoundError
        return find_spec(module)

    monkeypatch.setattr(checks, "find_spec", found)
    text = "agent: {podResources: {socket: /run/a.sock}}"
    with pytest.raises(ConfigError) as caught:
        load_config(text, "x")
    (problem,) = caught.value.problems
    assert problem.path == "agent.podResources.socket"
    assert named in problem.message
    assert "pip install 'numawarden[grpc]'" in problem.message
    assert load_config("agent: {podResources: {socket: }}", "x") == Config()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("staticPodPath: /etc/pods\nagent: {kubelet: {enabled: true}}", "staticPodPath"),
        (
            "agent: {kubelet: {enabled: true}, devicePlugins: {enabled: true}}",
            "agent.devicePlugins.enabled",
        ),
        ("agent: {kubelet: {enabled: true}, sharedCgroup: true}", "agent.sharedCgroup"),
    ],
)
def test_what_the_kubelet_does_is_not_done_beside_one(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match="beside a kubelet") as caught:
        load_config(text, "x")
    assert [problem.path for problem in caught.value.problems] == [key]
    load_config(text.replace("kubelet: {enabled: true}", "kubelet: {enabled: false}"), "x")


@pytest.mark.parametrize(
    ("directory", "socket", "rejected"),
    [
        ("/var/lib/kubelet", "/var/lib/kubelet/pod-resources/kubelet.sock", True),
        ("/srv/kubelet", "/srv/kubelet/pod-resources/kubelet.sock", True),
        ("/srv/kubelet", "/var/lib/kubelet/pod-resources/kubelet.sock", False),
        ("/var/lib/kubelet", "/run/numawarden/pod-resources/kubelet.sock", False),
    ],
)
def test_podresources_are_not_served_in_the_place_of_the_kubelet_beside_the_agent(
    directory: str, socket: str, *, rejected: bool
) -> None:
    def text(*, enabled: bool) -> str:
        kubelet = f"{{enabled: {str(enabled).lower()}, directory: {directory}}}"
        return f"agent: {{kubelet: {kubelet}, podResources: {{socket: {socket}}}}}"

    assert load_config(text(enabled=False), "x").agent.pod_resources.socket == Path(socket)
    if not rejected:
        assert load_config(text(enabled=True), "x").agent.kubelet.enabled
        return
    with pytest.raises(ConfigError, match="socket of the kubelet beside") as caught:
        load_config(text(enabled=True), "x")
    assert [each.path for each in caught.value.problems] == ["agent.podResources.socket"]
