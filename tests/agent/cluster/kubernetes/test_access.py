"""Where the API server is and which files are used: configured, of the unit, of the pod."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cluster.api_server import (
    SERVICE_ACCOUNT,
    AccessError,
    access_problems,
    api_access,
    node_name,
    with_credentials_of_unit,
)
from agent.config.model import KubernetesConfig

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
CONFIGURED = KubernetesConfig(server="https://10.0.0.1:6443")


def test_in_a_pod_all_is_that_of_the_service_account() -> None:
    access = api_access(KubernetesConfig(), IN_POD)
    assert access.url == "https://10.96.0.1:443"
    assert access.token_file == SERVICE_ACCOUNT / "token"
    assert access.ca_file == SERVICE_ACCOUNT / "ca.crt"


def test_the_credentials_of_the_unit_go_before_those_of_a_pod(tmp_path: Path) -> None:
    for name in ("kubernetes-token", "kubernetes-ca"):
        (tmp_path / name).touch()
    access = api_access(CONFIGURED, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert (access.token_file, access.ca_file) == (
        tmp_path / "kubernetes-token",
        tmp_path / "kubernetes-ca",
    )


def test_a_unit_without_the_credential_uses_the_service_account(tmp_path: Path) -> None:
    access = api_access(CONFIGURED, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert access.token_file == SERVICE_ACCOUNT / "token"


def test_what_is_configured_goes_before_all_else(tmp_path: Path) -> None:
    (tmp_path / "kubernetes-token").touch()
    token = Path("/etc/numawarden/token")
    config = replace(CONFIGURED, token_file=token, ca_file=token)
    access = api_access(config, {**IN_POD, "CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert (access.url, access.token_file, access.ca_file) == (
        "https://10.0.0.1:6443",
        token,
        token,
    )


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://api.example.com", "https://api.example.com:443"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://proxy/k8s/clusters/c-1", "https://proxy:443/k8s/clusters/c-1"),
    ],
)
def test_a_server_may_have_any_form_of_url(server: str, url: str) -> None:
    assert api_access(KubernetesConfig(server=server), {}).url == url


def test_an_ipv6_service_is_put_in_brackets() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert api_access(KubernetesConfig(), environ).url == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    "environ",
    [{}, {**IN_POD, "KUBERNETES_SERVICE_PORT": "tcp://"}, {"KUBERNETES_SERVICE_HOST": ""}],
)
def test_without_a_server_the_key_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(AccessError, match=r"agent\.kubernetes\.server: not set, .*; set it to the"):
        api_access(KubernetesConfig(), environ)


def test_the_node_is_configured_or_of_the_pod_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Worker-9.Example.com")
    assert node_name(replace(CONFIGURED, node_name="a"), {"NODE_NAME": "b"}) == "a"
    assert node_name(CONFIGURED, {"NODE_NAME": "b"}) == "b"
    assert node_name(CONFIGURED, {}) == "worker-9.example.com"


def test_missing_files_are_problems_with_a_remedy(tmp_path: Path) -> None:
    config = replace(CONFIGURED, token_file=tmp_path / "gone", ca_file=tmp_path)
    token, ca = access_problems(api_access(config, {}))
    assert str(token).startswith(
        f"agent.kubernetes.tokenFile: {tmp_path}/gone: No such file or directory; name a file"
    )
    assert "LoadCredential=kubernetes-token:FILE" in str(token)
    assert str(ca).startswith(f"agent.kubernetes.caFile: {tmp_path}: not a regular file; name")


def test_files_that_are_there_are_no_problem(tmp_path: Path) -> None:
    for name in ("token", "ca"):
        (tmp_path / name).touch()
    config = replace(CONFIGURED, token_file=tmp_path / "token", ca_file=tmp_path / "ca")
    assert list(access_problems(api_access(config, {}))) == []


def test_a_command_has_the_credentials_of_the_running_unit(tmp_path: Path) -> None:
    own = {"CREDENTIALS_DIRECTORY": "/own"}
    assert with_credentials_of_unit(own, tmp_path) == own
    assert with_credentials_of_unit({}, tmp_path) == {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert with_credentials_of_unit({}, tmp_path / "gone") == {}
