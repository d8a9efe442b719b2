"""A host on which the process of a test becomes a command: its kernel and its systemd."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.config.model import CgroupDriver
from agent.managers.policy import MemoryManagerPolicy
from agent.pods.quantity import Quantity
from agent.tools.run import OwnProcess
from tests.agent.cli.shell import Command
from tests.agent.server.support import PATIENCE
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from agent.api.documents.pods import PodDocument
    from agent.managers.numa_policy import NumaPolicy
    from sysfs.mask import Mask
    from tests.agent.server.support import Running, World

#: The process of the command line, of which nothing but its cgroup is real.
PID = 4711


@dataclass(frozen=True)
class Started:
    """What a process has become, and where the kernel let it run from then on."""

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: Mask
    nodes: Mask
    policy: NumaPolicy | None = None


@dataclass
class CommandHost:
    """The host of an agent that runs, and a shell on it."""

    world: World
    agent: Running
    captured: pytest.CaptureFixture[str]
    started: list[Started] = field(default_factory=list)
    #: What the kernel says instead of becoming the command.
    fails: OSError | None = None
    #: What it says instead of setting a NUMA policy.
    no_policies: OSError | None = None
    #: What happens just before the process looks where it may run.
    meddle: Callable[[], None] = lambda: None

    @property
    def systemd(self) -> FakeSystemd:
        assert isinstance(self.world.systemd, FakeSystemd)
        return self.world.systemd

    @property
    def pods(self) -> tuple[PodDocument, ...]:
        return self.agent.client.pods()

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return Command(self.captured)(*arguments)

    def end_pods(self) -> None:
        ended = self.agent.controller.end_pods()
        loop = self.agent.life.get_loop()
        asyncio.run_coroutine_threadsafe(ended, loop).result(PATIENCE)

    def caller(self, _mount: Path) -> OwnProcess:
        policies: list[NumaPolicy] = []

        def set_policy(policy: NumaPolicy) -> None:
            if self.no_policies is not None:
                raise self.no_policies
            policies.append(policy)

        def execute(program: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
            self._execute(program, arguments, variables, policies)

        return OwnProcess(
            PID,
            lambda: self.world.kernel,
            lambda: self.systemd,
            self._status,
            set_policy,
            execute,
        )

    def _status(self) -> str:
        self.meddle()
        cpus, nodes = self.world.kernel.allowed(PID)
        return f"Name:\tpython\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}\n"

    def _execute(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        policies: Sequence[NumaPolicy],
    ) -> None:
        if self.fails is not None:
            raise self.fails
        cpus, nodes = self.world.kernel.allowed(PID)
        policy = policies[-1] if policies else None
        self.started.append(
            Started(program, tuple(arguments), dict(environment), cpus, nodes, policy)
        )


def with_driver(world: World, driver: CgroupDriver) -> World:
    """Return the world under a driver, with pinned memory; the process of the shell is in it."""
    world.config = replace(
        world.config,
        cgroup_driver=driver,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        system_reserved=MappingProxyType({"memory": Quantity.of_bytes(1 << 30)}),
    )
    if driver is CgroupDriver.SYSTEMD:
        world.systemd = FakeSystemd(world.kernel)
    world.kernel.mkdir("session")
    world.kernel.spawn("session", PID)
    return world
