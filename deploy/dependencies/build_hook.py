"""The hook of hatchling that puts the SBOM and the third-party licences into the wheel.

Both describe the locked dependencies as they are installed beside the build, so they are written
when a wheel is built and not kept in the repository.
"""

from __future__ import annotations

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DependenciesHook(BuildHookInterface):  # type: ignore[type-arg]  # the hook has no configuration
    """Writes both files before the wheel is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files and have them included; raises `DependencyError`.

        An editable installation has none: it is made before the dependencies are installed. A
        build that is isolated from them has none either, and says so.
        """
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from deploy.dependencies import __main__ as dependencies  # noqa: PLC0415
        except ModuleNotFoundError as missing:
            self.app.display_warning(
                f"the wheel gets no SBOM and no third-party licences, since {missing.name} is not"
                " installed beside the build: build it with `make wheel`"
            )
            return
        finally:
            sys.path.remove(self.root)
        dependencies.write()
        build_data["sbom_files"].append(str(dependencies.SBOM.relative_to(self.root)))
