"""Unpack Helm and kubectl: `make helm`."""

from __future__ import annotations

import sys

from tests.helm import MissingHelmError, install

if __name__ == "__main__":
    try:
        install()
    except MissingHelmError as error:
        sys.exit(f"helm: {error}")
