"""Manifest directories: a file with any name and content is its own concern and can be listed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from agent.api.documents.document import decode, encode
from agent.api.documents.status import ManifestDocument
from agent.pods.manifest import load_pod
from agent.sources.manifests import ManifestFormat, scan
from agent.text import printable
from tests.agent.server.support import UID, manifest
from tests.fuzz.damage import damaged_bytes
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.fuzz.target import Check

_NAMES: Final = (
    b"a.yaml", b"caf\xc3\xa9.yaml", b"caf\xe9", b"a b", b"\xe2\x80\xae", b"\xed\xa0\x80",
)  # fmt: skip
#: Sorted after most names, so that it is read after what may fail.
_SOUND: Final = "sound"
_FORM: Final = ManifestFormat(load_pod, 1 << 16)
_LONGEST: Final = 255


def make_name(random: Random) -> bytes:
    """Draw a name of a file, as bytes."""
    name = damaged_bytes(random, random.choice(_NAMES)) if random.randrange(6) else b"\xff"
    return name.replace(b"/", b"").replace(b"\0", b"").lstrip(b".")[:_LONGEST] or b"a"


@contextmanager
def open_directory() -> Iterator[Check]:
    """Give the check a directory with a sound manifest in it."""
    with TemporaryDirectory() as directory:
        sound = Path(directory, _SOUND)
        sound.write_bytes(manifest())

        def check(name: bytes) -> bool:
            file = Path(directory, os.fsdecode(name))
            if file == sound:
                return True
            file.write_bytes(manifest(uid=None))
            try:
                return _check(Path(directory))
            finally:
                file.unlink()

        yield check


def _check(directory: Path) -> bool:
    files = scan(directory, {}, _FORM)
    demand(len(files) == len((_SOUND, "other")), f"{len(files)} files are listed")
    for file in files:
        said = "" if file.error is None else str(file.error)
        name = printable(str(file.path))
        demand(name.isprintable() and said.isprintable(), f"{name!r} {said!r}")
        document = ManifestDocument(file=name, state="", message=said)
        demand(decode(encode(document), ManifestDocument) == document, "it cannot be reported")
    pods = [file.pod for file in files if file.pod is not None]
    demand(UID in [pod.uid for pod in pods], "the sound manifest is not read")
    return len(pods) == len(files)


NAMES: Final = Target("manifest-names", make_name, open_directory, weight=2)
