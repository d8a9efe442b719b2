"""The keys of `agent.devicePlugins`, and what is missing on a host where they are enabled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.config import load as checks
from agent.config.load import load_config
from agent.config.model import Config, ConfigError, DevicePluginsConfig

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ENABLED = "agent: {devicePlugins: {enabled: true}}"


def plugins_of(text: str) -> DevicePluginsConfig:
    return load_config(f"agent: {{devicePlugins: {{{text}}}}}", "x").agent.device_plugins


def test_device_plugins_are_off_and_in_the_kubelets_directory_by_default() -> None:
    plugins = Config().agent.device_plugins
    assert not plugins.enabled
    assert plugins.directory == Path("/var/lib/kubelet/device-plugins")


def test_every_key_is_read() -> None:
    assert plugins_of("enabled: true, directory: /run/plugins, callTimeout: 12s500ms") == (
        DevicePluginsConfig(enabled=True, directory=Path("/run/plugins"), call_timeout=12.5)
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enabled: 1", "expected true or false"),
        ("directory: plugins", "absolute"),
        (f"directory: /{'a' * 64}", "at most 64 bytes"),
        ("directory: /" + "\u00e9" * 32, "at most 64 bytes"),
        ("callTimeout: 31s", "is not between 100ms and 30s"),
        ("callTimeouts: 3s", "callTimeout"),
    ],
)
def test_what_cannot_be_is_rejected(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plugins_of(text)


@pytest.mark.parametrize("absent", ["grpc", "google"])
def test_without_the_extra_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    def found(module: str) -> ModuleSpec | None:
        if module == absent:
            return None
        if module.startswith(f"{absent}."):
            raise ModuleNotFoundError(module)
        return importlib.util.find_spec(module)

    monkeypatch.setattr(checks, "find_spec", found)
    assert not load_config("{}", "x").agent.device_plugins.enabled
    with pytest.raises(ConfigError, match=r"pip install 'numawarden\[grpc\]'") as caught:
        load_config(ENABLED, "x")
    assert "agent.devicePlugins.enabled" in str(caught.value)


def test_with_the_extra_device_plugins_can_be_enabled() -> None:
    assert load_config(ENABLED, "x").agent.device_plugins.enabled
