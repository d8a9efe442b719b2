"""A registration names a resource and a socket in the directory, or is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.devices.registration import Registrant, read_registration
from agent.rpc.calls import CallError
from tests.fakes.device_plugin import encoded

DIRECTORY = Path("/var/lib/kubelet/device-plugins")


def registration(
    resource: str = "example.com/gpu", endpoint: str = "gpu.sock", version: str = "v1beta1"
) -> bytes:
    return encoded("RegisterRequest", resource_name=resource, endpoint=endpoint, version=version)


def test_the_socket_is_in_the_directory() -> None:
    assert read_registration(registration(), DIRECTORY) == Registrant(
        "example.com/gpu", DIRECTORY / "gpu.sock"
    )


def test_another_version_is_rejected_with_the_kubelets_words() -> None:
    with pytest.raises(CallError) as caught:
        read_registration(registration(version="v1"), DIRECTORY)
    assert caught.value.code == "UNKNOWN"
    assert caught.value.message == (
        'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    )


@pytest.mark.parametrize(
    "resource", ["", "gpu", "cpu", "kubernetes.io/gpu", "a b/c", "a/b/c", "example.com/" + "a" * 64]
)
def test_what_is_no_extended_resource_is_rejected_in_the_kubelets_words(resource: str) -> None:
    with pytest.raises(CallError, match=r"the ResourceName .* is invalid"):
        read_registration(registration(resource=resource), DIRECTORY)


# Shows in differences.md: plugin-endpoint
@pytest.mark.parametrize(
    "endpoint",
    ["", ".", "..", "kubelet.sock", "../x", "/x", "a/b", "a\0b", "a\n", "a" * 76, "\u00e9" * 38],
)
def test_an_endpoint_outside_of_the_directory_or_too_long_is_rejected(endpoint: str) -> None:
    with pytest.raises(CallError, match="endpoint") as caught:
        read_registration(registration(endpoint=endpoint), DIRECTORY)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_the_longest_path_that_the_kernel_takes_is_accepted() -> None:
    found = read_registration(registration(endpoint="a" * 75), DIRECTORY)
    assert len(str(found.socket)) == 107


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x0a\x7f", b"\x00" * 5000, b"\x0a\x01\xff"])
def test_bytes_that_are_no_request_are_rejected(raw: bytes) -> None:
    with pytest.raises(CallError, match="RegisterRequest"):
        read_registration(raw, DIRECTORY)
