"""Install the browser that the tests of the dashboard drive: `make browser`."""

from __future__ import annotations

import sys

from tests.browser import install
from tests.guest.errors import GuestError

if __name__ == "__main__":
    try:
        install()
    except GuestError as error:
        sys.exit(f"browser: {error}")
