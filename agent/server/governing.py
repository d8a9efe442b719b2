"""Whose version of Kubernetes governs decisions, and the host under the rules of that version.

In go the configuration as it was given, what the neighbour says, and the checkpoint; out come the
configuration with its version (`GovernedConfig`) and the `ConfiguredHost` that follows. The first
version that is known governs:

1. `kubernetesVersion` of the configuration;
2. the version that the neighbour says; without a neighbour the newest that the agent knows;
3. the version of the last decision, from the checkpoint;
4. the newest.

A setting may be a mistake under one version and none under another. If the configuration does not
fit the version that governs, an agent that starts follows the newest, under which the configuration
was checked, and a condition says so; a running agent keeps the version that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config.checks import find_problems
from agent.config.model import VERSION_KEY, Config, ConfigError
from agent.managers.versions import KubernetesVersion
from agent.server.configured import ConfiguredHost, GoverningVersion, situate

if TYPE_CHECKING:
    from agent.devices.providers import Providers
    from agent.managers.resource_manager import ResourceManager
    from agent.server.host_reader import HostReader
    from agent.server.plugs import Neighbour
    from agent.server.state import AgentState
    from agent.state.checkpoint import Checkpoint
    from sysfs.host import Host

log = structlog.get_logger(__name__)


class GovernedConfig(Struct, frozen=True):
    """A configuration that names the version which governs it, and what says so."""

    config: Config
    governing: GoverningVersion


def governed_at_start(
    given: Config, neighbour: Neighbour, saved: Checkpoint | None
) -> tuple[GovernedConfig, str]:
    """Return the configuration under the version that governs, and how it does not fit, else ""."""
    version = neighbour.governing
    if version is None:
        name = "" if saved is None else saved.policy.get(VERSION_KEY, "")
        if name in set(KubernetesVersion):
            version = GoverningVersion(KubernetesVersion(name), "the last decision")
    try:
        return governed_by(given, version), ""
    except ConfigError as error:
        log.error("configuration does not fit the version", why=str(error))  # noqa: TRY400  # not a defect of the agent
        return governed_by(given, None), str(error)


def governed_by(given: Config, version: GoverningVersion | None) -> GovernedConfig:
    """Return the configuration under its own version, else under `version`, else the newest.

    Raises `ConfigError` with the mistakes that the configuration has only under that version.
    """
    if given.kubernetes_version is not None:
        version = GoverningVersion(given.kubernetes_version, VERSION_KEY)
    version = version or GoverningVersion()
    config = replace(given, kubernetes_version=version.version)
    before = find_problems(given)
    if problems := [problem for problem in find_problems(config) if problem not in before]:
        source = f"configuration under {config.version} ({version.source})"
        raise ConfigError(source, tuple(problems))
    return GovernedConfig(config, version)


class Governor:
    """Makes the `ConfiguredHost` of a running agent again, once what it is made of changed.

    Its methods read the host and are called in the worker's thread. A configuration that does not
    fit the host keeps the former policy, and its version.
    """

    def __init__(
        self,
        given: Config,
        governed: GovernedConfig,
        state: AgentState,
        reader: HostReader,
        managers: tuple[ResourceManager, ...],
        providers: Providers,
    ) -> None:
        self._given = given
        self._governed = governed
        self._state = state
        self._reader = reader
        self._managers = managers
        self._providers = providers

    def govern(self, version: GoverningVersion | None) -> ConfiguredHost:
        """Return the host under the rules of a version, which govern from now on.

        Raises `ConfigError` if the configuration does not fit them: nothing is changed then.
        """
        self._governed = governed_by(self._given, version)
        return self.read_host()

    def read_host(self) -> ConfiguredHost:
        """Return the host as it is now; raises `SysfsError`."""
        return self._configured(self._reader.read(self._state.configured.host.withheld))

    def take_offer(self) -> ConfiguredHost:
        """Return the host as last read, with the devices that providers offer now."""
        return self._configured(self._state.configured.host)

    def _configured(self, host: Host) -> ConfiguredHost:
        configured = situate(
            self._governed.config,
            host,
            self._state.configured,
            managers=self._managers,
            offer=self._providers.offer(),
            cordon=self._state.durable.cordons.total,
        )
        if configured.mismatches:
            return configured
        return replace(configured, governing=self._governed.governing)
