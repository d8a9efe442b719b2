"""The page as one file: its styles, its script and the answers that it would ask for.

The file needs no server and no network. Its Content-Security-Policy allows nothing but what stands
in the file; see docs/dashboard.md.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Final

import msgspec

from agent.api.documents.document import Document, encode
from agent.api.documents.history import HistoryDocument  # noqa: TC001  # msgspec reads annotations
from agent.api.documents.pods import PodDocument  # noqa: TC001  # same
from agent.api.documents.status import StatusDocument  # noqa: TC001  # same
from agent.tools.dashboard.server import PictureMaker, page_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents.map import MapDocument

#: What the page loads and says at first, for which a saved one has something else.
_STYLE: Final = '<link rel="stylesheet" href="{name}">'
_SCRIPT: Final = '<script type="module" src="main.js"></script>'
_ICON: Final = '"icon.svg"'
_STATE: Final = '<p class="state" id="state" role="status" data-state="waiting">connecting</p>'
_CHARSET: Final = '<meta charset="utf-8">'
#: What a saved page has beside it: the answers.
_DATA: Final = '<script type="application/json" id="saved">{data}</script>'
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
#: As that of the served page (`agent.tools.dashboard.server.POLICY`), without any request.
_POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src {styles}; img-src data:; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class SavedAnswers(Document, frozen=True):
    """The answers that the page shows; `history` is null where the agent keeps none."""

    picture: msgspec.Raw
    pods: tuple[PodDocument, ...]
    status: StatusDocument
    history: HistoryDocument | None


def saved_answers(
    drawn: MapDocument,
    pods: tuple[PodDocument, ...],
    status: StatusDocument,
    history: HistoryDocument | None,
) -> SavedAnswers:
    """Return what a page shows of the documents of an agent."""
    picture = msgspec.Raw(PictureMaker().encoded(encode(drawn)))
    return SavedAnswers(picture=picture, pods=pods, status=status, history=history)


def saved_page(answers: SavedAnswers, when: str) -> str:
    """Return the page with these answers as HTML; it says that it was saved `when`."""
    files = {path[1:]: file.body.decode() for path, file in page_files().items()}
    page, script = files[""], "\n" + "".join(_modules(files, "main.js", set()))
    styles = {name: f"\n{text}" for name, text in files.items() if name.endswith(".css")}
    hashes = " ".join(f"'{_hash(style)}'" for style in styles.values())
    policy = _POLICY.format(script=_hash(script), styles=hashes)
    icon = b64encode(files["icon.svg"].encode()).decode()
    # What ends an element, or begins a comment, stands in no string of JSON then.
    data = encode(answers).decode().replace("<", "\\u003c")
    for old, new in (
        (_CHARSET, f'{_CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        *((_STYLE.format(name=name), f"<style>{style}</style>") for name, style in styles.items()),
        (_ICON, f'"data:image/svg+xml;base64,{icon}"'),
        (_STATE, f'<p class="state" id="state" data-state="saved">saved {when}</p>'),
        (_SCRIPT, f'{_DATA.format(data=data)}\n<script type="module">{script}</script>'),
    ):
        if old not in page:
            raise ValueError(f"the page has no {old}")
        page = page.replace(old, new)
    return page


def _modules(files: Mapping[str, str], name: str, seen: set[str]) -> Iterator[str]:
    """Yield the text of each module after those that it imports, without imports and exports."""
    seen.add(name)
    for other in _IMPORT.findall(files[name]):
        if other not in seen:
            yield from _modules(files, other, seen)
    yield _EXPORT.sub("", _IMPORT.sub("", files[name]))


def _hash(text: str) -> str:
    """Return the source of a Content-Security-Policy that allows this text alone."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
