"""The manifest directory: a file admits a pod, its end removes it, a bad one is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.guest.inside.agent import Agent
from tests.guest.inside.pods import POD_SCOPE

if TYPE_CHECKING:
    from tests.guest.inside.guest import Guest

DIRECTORY: Final = Path("/etc/numawarden/manifests")
EXAMPLES: Final = {example.name: example for example in POD_SCOPE}


def run(guest: Guest) -> None:
    """Write, spoil and delete manifests; restart in between."""
    checks = guest.checks
    agent = Agent(guest, staticPodPath=str(DIRECTORY))
    before = EXAMPLES["pod-scope-shared"]
    _write(before.manifest, "before.yaml")
    agent.start()

    def uids() -> list[str]:
        return sorted(pod["uid"] for pod in agent.pods())

    checks.eventually("a file that was there", uids, [before.uid])
    later = EXAMPLES["pod-scope-mixed"]
    _write(later.manifest, "later.yaml")
    both = sorted([before.uid, later.uid])
    checks.eventually("a file that came", uids, both)
    (DIRECTORY / "bad.yaml").write_text("apiVersion: v1\nkind: Pod\nspec: {containers: 3}\n")
    checks.eventually("a bad file is reported", lambda: _states(agent).get("bad.yaml"), "invalid")
    agent.restart()
    checks.eventually("the same after a restart", uids, both)
    (DIRECTORY / "before.yaml").unlink()
    checks.eventually("a file that went", uids, [later.uid])


def _write(manifest: dict[str, object], name: str) -> None:
    """Put a manifest in place at once, as editors and tools do."""
    temporary = DIRECTORY / f".{name}"
    temporary.write_text(json.dumps(manifest))
    temporary.rename(DIRECTORY / name)


def _states(agent: Agent) -> dict[str, str]:
    manifests: list[dict[str, Any]] = agent.status()["manifests"]
    return {Path(entry["file"]).name: entry["state"] for entry in manifests}
