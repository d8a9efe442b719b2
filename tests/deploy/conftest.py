from __future__ import annotations

import pytest

from deploy.dependencies import __main__ as dependencies


@pytest.fixture(scope="session", autouse=True)
def _written() -> None:
    """Write what a checkout does not contain: the SBOM and the third-party licences."""
    dependencies.write()
