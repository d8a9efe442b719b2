"""Where the API server is and which files are used: configured, of the unit, of the pod."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cluster.kubernetes.access import (
    SERVICE_ACCOUNT,
    AccessError,
    access_problems,
    api_access,
    node_name,
    with_credentials_of_unit,
)
from agent.config.cluster import KubernetesConfig

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
CONFIGURED = KubernetesConfig(server="https://10.0.0.1:6443")


@pytest.mark.parametrize("in_pod", [True, False])
@pytest.mark.parametrize("of_unit", [True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_what_is_configured_goes_before_the_units_and_that_before_the_pods(
    tmp_path: Path, *, in_pod: bool, of_unit: bool, configured: bool
) -> None:
    given, environ = Path("/etc/numawarden/token"), {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    files = (SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt")
    if of_unit:
        files = (tmp_path / "kubernetes-token", tmp_path / "kubernetes-ca")
        for file in files:
            file.touch()
    config = replace(CONFIGURED, server="") if in_pod else CONFIGURED
    if configured:
        config, files = replace(CONFIGURED, token_file=given, ca_file=given), (given, given)
    access = api_access(config, environ | (IN_POD if in_pod else {}))
    assert (access.token_file, access.ca_file) == files
    assert access.url == ("https://10.96.0.1:443" if not config.server else CONFIGURED.server)


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://api.example.com", "https://api.example.com:443"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://proxy/k8s/clusters/c-1", "https://proxy:443/k8s/clusters/c-1"),
        ("", "https://[fd00::1]:443"),
    ],
)
def test_a_server_may_have_any_form_of_url(server: str, url: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert api_access(KubernetesConfig(server=server), environ).url == url


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
    (tmp_path / "gone").touch()
    config = replace(config, ca_file=tmp_path / "gone")
    assert list(access_problems(api_access(config, {}))) == []


def test_a_command_has_the_credentials_of_the_running_unit(tmp_path: Path) -> None:
    own = {"CREDENTIALS_DIRECTORY": "/own"}
    assert with_credentials_of_unit(own, tmp_path) == own
    assert with_credentials_of_unit({}, tmp_path) == {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert with_credentials_of_unit({}, tmp_path / "gone") == {}
