from __future__ import annotations

from pathlib import Path

import pytest

from agent.config.load import load_config
from agent.config.model import Config, ConfigError, KubernetesConfig


def read(text: str) -> KubernetesConfig:
    return load_config(f"agent: {{kubernetes: {{{text}}}}}\n".encode(), "test").agent.kubernetes


def mistake(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    return f"{problem.path}: {problem.message}"


def test_nothing_is_published_by_default() -> None:
    assert not Config().agent.kubernetes.enabled


@pytest.mark.parametrize("key", ["publishTopology", "events"])
def test_either_switch_needs_the_api_server(key: str) -> None:
    assert read(f"{key}: true").enabled


def test_all_keys_are_read() -> None:
    assert read(
        "publishTopology: true, nodeName: worker-1.example.com, server: 'https://[fd00::1]:6443/', "
        "tokenFile: /t, caFile: /c"
    ) == KubernetesConfig(
        publish_topology=True,
        node_name="worker-1.example.com",
        server="https://[fd00::1]:6443",
        token_file=Path("/t"),
        ca_file=Path("/c"),
    )


@pytest.mark.parametrize("name", ["Worker", "a_b", "-a", "a.", "a..b", "a" * 254, "a b", "../a"])
def test_a_node_has_the_name_of_a_node(name: str) -> None:
    assert mistake(f"nodeName: '{name}'").endswith("is not the name of a node, such as worker-1")


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:6443",
        "10.0.0.1:6443",
        "https://",
        "https://a:b",
        "https://a:0",
        "https://a:99999",
        "https://u:p@a",
        "https://a?x=1",
        "https://a#x",
        "https://[fd00::1",
        "https://a b",
        "https://ä",
    ],
)
def test_a_server_is_a_url_that_a_token_may_be_sent_to(url: str) -> None:
    assert mistake(f"server: '{url}'").startswith("agent.kubernetes.server: ")
