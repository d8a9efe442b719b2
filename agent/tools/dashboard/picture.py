"""The map with what the page needs to draw it beside: nested parts, shared cores, device words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from agent.api.documents import decode
from agent.api.host.map import CpuUse, MapCpuDocument, MapDocument
from agent.api.host.mapped import is_shared
from agent.tools.map.devices import device_word
from agent.tools.map.parts import MappedPart, parts_of
from agent.tools.map.text import COLLAPSE_ABOVE, folds_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_encoder: Final = msgspec.json.Encoder()


class PicturePart(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A `MappedPart` of the map: `cores` has the CPUs of each core, `cpus` all as a list."""

    kind: str
    id: int | None
    cpus: str
    first: bool
    kinds: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    children: tuple[PicturePart, ...]


class PictureFold(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The outermost parts from `start` up to `end` are alike: `text` says what they are."""

    start: int
    end: int
    text: str


class Picture(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the page draws: `map` is the agent's document as it came (`GET /v1/map`).

    `shared_cores` has the CPUs of cores with several users. `device_words` says of each device of
    the map what it is, in the same order, `""` for those offered to pods. `folds` are runs of equal
    parts, as in a terminal.
    """

    map: msgspec.Raw
    parts: tuple[PicturePart, ...]
    shared_cores: tuple[int, ...]
    device_words: tuple[str, ...]
    folds: tuple[PictureFold, ...] = ()


class PictureMaker:
    """Makes pictures of maps; the parts stay those of the last map while its CPUs do."""

    def __init__(self) -> None:
        self._places: list[object] = []
        self._drawn: tuple[PicturePart, ...] = ()

    def encoded(self, body: bytes) -> bytes:
        """Return the picture of a map in JSON as JSON; raises `msgspec.DecodeError`."""
        document = decode(body, MapDocument)
        places: list[object] = [_place(cpu) for cpu in document.cpus]
        is_new = places != self._places
        parts = parts_of(document) if is_new or len(document.cpus) > COLLAPSE_ABOVE else ()
        if is_new:
            self._places, self._drawn = places, tuple(map(_part, parts))
        picture = Picture(
            map=msgspec.Raw(body),
            parts=self._drawn,
            shared_cores=tuple(_shared(document.cpus, self._drawn)),
            device_words=tuple(
                "" if device.kind == "resource" else device_word(device)
                for device in document.devices
            ),
            folds=tuple(
                PictureFold(start=fold.start, end=fold.end, text=fold.text)
                for fold in folds_of(document, parts)
            ),
        )
        return _encoder.encode(picture)


def _place(cpu: MapCpuDocument) -> object:
    """Return what decides where a CPU is drawn."""
    offline = cpu.use is CpuUse.OFFLINE
    return cpu.id, cpu.core, cpu.die, cpu.package, cpu.node, cpu.uncore, cpu.kind, offline


def _part(part: MappedPart) -> PicturePart:
    return PicturePart(
        kind=part.kind,
        id=part.id,
        cpus=str(part.cpus),
        first=part.first,
        kinds=tuple(core.kind for core in part.cores),
        cores=tuple(tuple(cpu.id for cpu in core.threads) for core in part.cores),
        children=tuple(map(_part, part.children)),
    )


def _shared(cpus: Iterable[MapCpuDocument], parts: Iterable[PicturePart]) -> Iterable[int]:
    known = {cpu.id: cpu for cpu in cpus}
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        waiting += part.children
        for core in part.cores:
            if is_shared([known[cpu] for cpu in core]):
                yield from core
