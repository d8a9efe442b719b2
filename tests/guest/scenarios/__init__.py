"""What the guests are booted for: one module a scenario, its `run(guest)` is run inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scenario:
    """One guest: the module of this package it runs, its machine and its limit in seconds.

    `agent` tells whether the agent's environment is laid at its place, `wheels` whether the job
    also brings the wheels to install it from.
    """

    name: str
    topology: str
    summary: str
    timeout: float = 300
    agent: bool = True
    wheels: bool = False

    @property
    def module(self) -> str:
        """The module inside the guest."""
        return f"{__name__}.{self.name.replace('-', '_')}"


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "plumbing",
            "two-sockets",
            "everything the other scenarios stand on, without the agent",
            agent=False,
        ),
    )
}
