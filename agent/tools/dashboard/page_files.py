"""The files of the page, read once: HTML, CSS and JavaScript modules as they are in the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = Path(__file__).with_name("page")
#: The page itself; `/` is answered with it.
INDEX: Final = "index.html"
#: The content types of what may be in the folder, by the suffix of the name.
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(Struct, frozen=True):
    """The bytes of one file and its content type."""

    body: bytes
    content_type: str


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Return the files by the path under which a browser asks for them, `/` is the page itself.

    All of them are read here, so that no path of a request ever reaches the file system. Raises
    `OSError`, and `KeyError` for a file of an unknown kind.
    """
    found = {
        f"/{file.name}": PageFile(file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.iterdir())
    }
    found["/"] = found.pop(f"/{INDEX}")
    return found
