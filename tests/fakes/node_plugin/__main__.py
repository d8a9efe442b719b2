"""Install the packages of the device plugin in JavaScript: `make plugin`."""

from __future__ import annotations

import sys

from tests.fakes.node_plugin import MissingNodeError, install

if __name__ == "__main__":
    try:
        install()
    except MissingNodeError as error:
        sys.exit(f"plugin: {error}")
