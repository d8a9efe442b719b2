"""Unpack Prometheus and promtool: `make prometheus`."""

from __future__ import annotations

import sys

from tests.prometheus import MissingPrometheusError, install

if __name__ == "__main__":
    try:
        install()
    except MissingPrometheusError as error:
        sys.exit(f"prometheus: {error}")
