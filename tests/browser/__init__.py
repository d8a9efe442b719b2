"""A real browser for tests: Debian's Chromium without a screen. `make browser` installs it."""

from __future__ import annotations

import shutil
from typing import Final

from tests.guest import host

#: Programs that are Chromium, the smallest first.
PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
NEED: Final = host.Need(PROGRAMS[0], "chromium-headless-shell")
#: Letters for the pictures: a browser without a font draws none.
FONTS: Final = host.Need("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "fonts-dejavu-core")


def program() -> str | None:
    """Return the path of the browser, None where there is none."""
    found = (shutil.which(name, path=host.search_path()) for name in PROGRAMS)
    return next((path for path in found if path is not None), None)


def install() -> None:
    """Install the browser with apt-get; raises `GuestError` where that is not possible."""
    if program() is None:
        host.provide((NEED, FONTS))
