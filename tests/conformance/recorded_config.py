"""Recorded configurations as the text of our own configuration file, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.config.load import load_config
from agent.config.model import ConfigError
from agent.config.resolve import resolve
from agent.tools.replay.recorded import config_document
from tests.conformance.recorded import machine_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import Policy


def config_text(config: Mapping[str, Any], gates: Mapping[str, bool]) -> str:
    """Return a configuration file that says what a recorded configuration says."""
    return json.dumps(config_document(config, gates))


def resolved_policy(case: Mapping[str, Any]) -> Policy:
    """Return the policy that a recorded case starts with; raises `ConfigError`.

    What pods request is not compared with the node: the managers were recorded alone.
    """
    config = load_config(config_text(case["config"], case.get("gates") or {}), case["name"])
    policy = resolve(config, machine_of(case["topology"]), source=case["name"])
    return replace(policy, fit=None)


def start_problems(case: Mapping[str, Any]) -> list[str]:
    """Return what keeps the agent from starting with a recorded configuration."""
    try:
        resolved_policy(case)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []
