"""A hook of mkdocs: what the pages link to outside of `docs/` becomes a part of the site.

The pages are read in the repository, too, where `../deploy/config.yaml` is a link that works. In
the site that file stands at `project/deploy/config.yaml`, pages such as the README at
`project/README.md`, and a directory gets a page that lists its files. The page of the configuration
is made here.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

from deploy.site.configuration import configuration_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
#: Where the pages stand in the repository, and what is not one of them in the site.
PAGES: Final = "docs/"
OUTSIDE: Final = "project/"
#: The page that is in the site alone.
CONFIGURATION: Final = "configuration.md"
#: `[text](target)`, the text possibly over several lines; what begins in code is left alone.
_LINK: Final = re.compile(r"(\[[^\]]+\]\()([^)\s]+)(\))")
_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_ELSEWHERE: Final = re.compile(r"[a-z]+:|#")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, those that the added pages link to, and so on."""
    waiting = [f"{PAGES}{file.src_uri}" for file in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        page = waiting.pop()
        for target in linked(page, _text(page)):
            if target not in seen and not target.startswith(PAGES):
                seen.add(target)
                waiting += [target] if _is_page(target) else []
                waiting += _directory(target)
    files.append(File.generated(config, CONFIGURATION, content=configuration_page()))
    for target in sorted(seen | {file for name in seen for file in _directory(name)}):
        files.append(_file(target, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links to what is not in `docs/` lead to where that is in the site."""
    del config, files  # mkdocs calls a hook with all of them
    return rewritten(_repository_path(page.file.src_uri), markdown)


def linked(page: str, markdown: str) -> Iterator[str]:
    """Yield the files and directories of the repository that a page links to, by their paths.

    `page` is the page's own path from the root of the repository.
    """
    for _, target, _ in _LINK.findall(_CODE.sub("", markdown)):
        path = _target(page, target)
        if path is not None:
            yield path


def rewritten(page: str, markdown: str) -> str:
    """Return the text of a page with its links as they are in the site."""

    def link(found: re.Match[str]) -> str:
        path = _target(page, found[2])
        if path is None or (path.startswith(PAGES) and page.startswith(PAGES)):
            return found[0]
        _, hash_sign, anchor = found[2].partition("#")
        there = relpath(_site_path(path), str(Path(_site_path(page)).parent))
        return f"{found[1]}{there}{hash_sign}{anchor}{found[3]}"

    return _LINK.sub(link, markdown)


def _target(page: str, target: str) -> str | None:
    """Return the path of what a link leads to, None for what is not in the repository."""
    if _ELSEWHERE.match(target):
        return None
    path = normpath(f"{Path(page).parent}/{target.partition('#')[0]}")
    return path if (ROOT / path).exists() and not path.startswith("..") else None


def _site_path(path: str) -> str:
    """Return where a path of the repository stands in the site's sources."""
    if path.startswith(PAGES):
        return path.removeprefix(PAGES)
    return f"{OUTSIDE}{path}/index.md" if (ROOT / path).is_dir() else f"{OUTSIDE}{path}"


def _repository_path(site_path: str) -> str:
    if not site_path.startswith(OUTSIDE):
        return f"{PAGES}{site_path}"
    return site_path.removeprefix(OUTSIDE)


def _is_page(path: str) -> bool:
    return path.endswith(".md") and (ROOT / path).is_file()


def _directory(path: str) -> list[str]:
    """Return the paths of a directory's files; nothing for what is not a directory."""
    folder = ROOT / path
    if not folder.is_dir():
        return []
    return sorted(str(file.relative_to(ROOT)) for file in folder.iterdir() if file.is_file())


def _text(path: str) -> str:
    return (ROOT / path).read_text()


def _file(path: str, config: MkDocsConfig) -> File:
    if (ROOT / path).is_dir():
        names = "".join(f"- [{Path(file).name}]({Path(file).name})\n" for file in _directory(path))
        return File.generated(config, _site_path(path), content=f"# {path}\n\n{names}")
    return File.generated(config, _site_path(path), abs_src_path=str(ROOT / path))
