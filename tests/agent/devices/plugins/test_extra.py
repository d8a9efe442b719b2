"""The extra `grpc` is imported only where device plugins are served."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("agent.cli.main", False),
        ("agent.server.wiring", False),
        ("agent.devices.plugin_limits", False),
        ("agent.devices.plugins", True),
    ],
)
def test_grpc_is_imported_with_the_provider_alone(module: str, *, imported: bool) -> None:
    program = f"import sys, {module}; print('grpc' in sys.modules)"
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(imported)
