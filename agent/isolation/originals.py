"""What places had before the agent: saved before the first write, given back, then forgotten.

In go what places show and what is to be written, out come originals. Every place goes through here.
`Custody.write` writes most of them, the enforcer the sets of slices and the exclusive CPUs of all
pods, `agent.isolation.resctrl` groups of caches. The life of an original:

| state | saved | shows | what leads on |
|---|---|---|---|
| untouched | no | anything | it has to change: `take` saves it, then it is written: ours |
| ours | yes | a text of the agent's | it is to differ no longer: given back; another writes it |
| changed by another | yes | another's text | it has to change: `take`, ours; else `forget` |
| given back | yes | the original | read back, then `forget`: untouched |

So what another writes is the new original, and stays as it is unless it has to change. The agent's
texts are what a saved place shows at a start, and what was written since: a start completes or
undoes what it finds.

Always true: a place is written only while its original is on the disk, and forgotten only when it
shows that, or another's text, or is gone. Raises `CheckpointIOError` where originals cannot be
saved; with originals that cannot be read nothing is written (`unusable`).
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from agent.isolation.places import PLACE_ERRORS, why_not
from agent.state.checkpoint import CheckpointError, UnusableCheckpointError
from agent.state.store import AtomicFile, OsFiles, read_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from agent.isolation.places import HostPlaces
    from agent.state.store import Files

log = structlog.get_logger(__name__)

ORIGINALS_NAME: Final = "isolation.json"
_REMEDY: Final = "put an intact copy in its place, or remove it and restart the host"
#: So many of its texts the agent knows of each place.
_REMEMBERED: Final = 64


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file; `boot_id` is the kernel's: after a reboot nothing is as it was written."""

    version: int
    boot_id: str
    originals: dict[str, str]


_VERSION: Final = 1


def running_boot(proc: Path) -> str:
    """Return the kernel's random boot id, "" where a sandbox hides that."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Originals:
    """The file of originals in the state directory.

    `boot_id` is that of the running kernel: those of another are forgotten.
    """

    def __init__(self, directory: Path, boot_id: str, files: Files | None = None) -> None:
        self._boot_id = boot_id
        self._files = OsFiles() if files is None else files
        self._file = AtomicFile(directory / ORIGINALS_NAME, self._files)

    def load(self) -> dict[str, str]:
        """Return the originals by place, none where nothing is written.

        Raises `UnusableCheckpointError` and `CheckpointIOError`.
        """
        path = self._file.path
        try:
            data = read_checked(self._files, path)
        except FileNotFoundError:
            return {}
        try:
            saved = msgspec.json.decode(data, type=_Saved)
        except msgspec.DecodeError as error:
            raise UnusableCheckpointError(path, "$", str(error), _REMEDY) from error
        if saved.version != _VERSION:
            why = f"version {saved.version} is not {_VERSION}"
            raise UnusableCheckpointError(path, "$.version", why, "use the newer release")
        return saved.originals if saved.boot_id == self._boot_id else {}

    def save(self, originals: Mapping[str, str]) -> None:
        """Save all originals, durable on return; raises `CheckpointIOError`."""
        data = msgspec.json.encode(
            _Saved(_VERSION, self._boot_id, dict(originals)), order="deterministic"
        )
        self._file.replace(data + b"\n")


class State(StrEnum):
    """Whose a text is that a place shows; one that was given back is forgotten: untouched."""

    UNTOUCHED = "untouched"
    OURS = "ours"
    CHANGED = "changed by another"


class ImmovableError(OSError):
    """The kernel lets no process change a place."""


class Custody:
    """The places that the agent may have written, with their originals; see the module."""

    def __init__(self, places: HostPlaces, file: Originals) -> None:
        self._places = places
        self._file = file
        #: What was there before, by the place's name; another mapping after each save.
        self.originals: Mapping[str, str] = {}
        #: Why nothing may be written, "" where it may: what was there before is not known.
        self.unusable = ""
        try:
            self.originals = file.load()
        except CheckpointError as error:
            self.unusable = f"nothing host-wide is written: {error}"
            log.error("originals of host settings unreadable", why=str(error))  # noqa: TRY400  # not a defect of the agent
        #: What was written since the start, by place, the last one last.
        self._written: dict[str, list[str]] = {}

    def state(self, name: str, shown: str) -> State:
        """Return whose it is what a place shows."""
        if name not in self.originals:
            return State.UNTOUCHED
        texts = self._written.get(name)
        if texts is None:
            self._written[name] = [shown]
            return State.OURS
        place, last = self._places.at(name), len(texts) - 1
        if not place.chosen:
            return State.OURS
        for at in range(last, -1, -1):
            if texts[at] == shown.strip() or place.same(shown, texts[at]):
                if at == last or not place.shows_later:
                    del texts[:at]  # what was written before shows no more
                return State.OURS
        return State.CHANGED

    def original(self, name: str, shown: str) -> str | None:
        """Return what was there before the agent, None where what is shown is not the agent's."""
        return self.originals[name] if self.state(name, shown) is State.OURS else None

    def wrote(self, name: str) -> bool:
        """Return whether a place was written since the start."""
        return name in self._written

    def last(self, name: str) -> str:
        """Return what was last written to a place since the start, "" for nothing."""
        return self._written.get(name, [""])[-1]

    def take(self, new: Mapping[str, str]) -> None:
        """Save what places show, before they are written."""
        if new:
            self._save({**self.originals, **new})

    def forget(self, names: Collection[str]) -> None:
        """Forget what is not the agent's any longer, or was never written."""
        if self.originals.keys() & names:
            self._save({name: one for name, one in self.originals.items() if name not in names})
        for name in names:
            self._written.pop(name, None)

    def will_write(self, name: str, text: str) -> None:
        """Know a text for the agent's, which is about to be written or was."""
        texts = self._written.setdefault(name, [])
        if text in texts:
            texts.remove(text)
        elif len(texts) == _REMEMBERED:
            del texts[0]
        texts.append(text)

    def write(self, name: str, text: str, *, many: bool = False) -> None:
        """Write a place whose original is saved, and read it back.

        `many`: not where the answer to the write says that it took, since hundreds are written.
        """
        place = self._places.at(name)
        first = text not in self._written.get(name, ())
        try:
            self._places.write(name, text)
        except OSError as error:
            if error.errno in place.immovable:
                raise ImmovableError(error.errno, error.strerror) from error
            raise
        self.will_write(name, text)
        if many and place.many:
            return
        shown = self._places.read(name)
        if self.state(name, shown) is State.CHANGED:
            self._written[name].insert(0, shown)  # what the kernel makes of the text
        if place.same(shown, text) or (place.shows_later and first):
            return
        raise OSError(errno.EIO, f"it shows {shown.strip()} instead of {text.strip()}")

    def give_back(self, names: Iterable[str]) -> tuple[dict[str, str], int]:
        """Give places back what they had, unless another chose since, and forget it.

        Return why that was not possible, by place, and how many were written. All are tried twice,
        since one may depend on another, as the lowest frequency on the highest.
        """
        waiting = sorted(names, key=lambda name: (self._places.at(name).order, name))
        # Before the first write, with which the kernel may change others.
        done = {name for name in waiting if self._is_anothers(name)}
        failed: dict[str, str] = {}
        written = 0
        for name in (*waiting, *waiting):
            if name in done:
                continue
            place, original = self._places.at(name), self.originals[name]
            try:
                shown = self._places.read(name)
                if shown != original or not place.same(shown, original):
                    self.write(name, original)
                    written += 1
            except FileNotFoundError:
                pass  # the device is gone, the unit, or the thread has ended
            except PLACE_ERRORS as error:
                failed[name] = why_not(error)
                continue
            done.add(name)
            failed.pop(name, None)
        self.forget(done)
        return failed, written

    def _is_anothers(self, name: str) -> bool:
        try:
            return self.state(name, self._places.read(name)) is State.CHANGED
        except PLACE_ERRORS:  # who gives it back reads it again, and says why not
            return False

    def _save(self, originals: Mapping[str, str]) -> None:
        if originals != self.originals:
            self._file.save(originals)
            self.originals = originals
