"""The state files of a kubelet: read from its root directory, written there atomically."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.versions import OLDEST, since
from agent.state.store import Files, OsFiles
from agent.tools.kubelet_state.cpu import CPU_FILE, CPU_FORMAT
from agent.tools.kubelet_state.format import (
    NoStateFilesError,
    StateDocument,
    StateFileExistsError,
    StateFileIOError,
    StateForm,
    UnreadableStateFileError,
    parse_json,
)
from agent.tools.kubelet_state.memory import MEMORY_FILE, MEMORY_FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.managers.versions import KubernetesVersion, VersionRules
    from agent.tools.kubelet_state.cpu import CpuState
    from agent.tools.kubelet_state.memory import MemoryState

_SUFFIX: Final = ".numawarden-new"
_NAMES: Final = (CPU_FILE, MEMORY_FILE)


def _state_is_in_data(rules: VersionRules) -> bool:
    return rules.state_is_in_data


class KubeletState(Struct, frozen=True):
    """What a kubelet's files say; None where a file is not there."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None


def encode_files(
    state: KubeletState, *, pod_level: bool, release: KubernetesVersion = OLDEST
) -> dict[str, bytes]:
    """Return the files by name, in the form that a kubelet of that configuration writes.

    `pod_level` is the gate PodLevelResourceManagers.
    """
    form = StateForm.WITH_BUDGETS if pod_level else StateForm.WITHOUT_BUDGETS
    if release.rules.state_is_in_data:
        form = StateForm.IN_DATA
    files: dict[str, bytes] = {}
    if state.cpu is not None:
        files[CPU_FILE] = CPU_FORMAT.write(state.cpu, form)
    if state.memory is not None:
        files[MEMORY_FILE] = MEMORY_FORMAT.write(state.memory, form)
    return files


def read_directory(directory: Path, files: Files | None = None) -> KubeletState:
    """Return what the files of a directory say.

    Raises `NoStateFilesError`, `UnreadableStateFileError`, and `OSError` as the system does.
    """
    system = OsFiles() if files is None else files
    paths = [directory / name for name in _NAMES]
    of_cpu, of_memory = (_content(system, path) for path in paths)
    cpu_path, memory_path = paths
    if of_cpu is None and of_memory is None:
        raise NoStateFilesError(directory, _NAMES)
    return KubeletState(
        cpu=None if of_cpu is None else CPU_FORMAT.read(of_cpu, cpu_path),
        memory=None if of_memory is None else MEMORY_FORMAT.read(of_memory, memory_path),
    )


def release_of(directory: Path, files: Files | None = None) -> KubernetesVersion:
    """Return the release whose formats the files of a directory have; the oldest without any.

    A file that cannot be read says nothing. Raises `OSError` as the system does.
    """
    system = OsFiles() if files is None else files
    for path in (directory / CPU_FILE, directory / MEMORY_FILE):
        content = _content(system, path)
        with suppress(UnreadableStateFileError):
            if content is not None and parse_json(content, StateDocument, path).has_data:
                return since(_state_is_in_data)
    return OLDEST


def write_directory(
    directory: Path, contents: Mapping[str, bytes], *, force: bool, files: Files | None = None
) -> None:
    """Write files by name, each whole or not at all; on return they are on the disk.

    No file is replaced before all are written beside their places. Raises `StateFileExistsError`
    where one is there and `force` is not given, and `StateFileIOError`.
    """
    system = OsFiles() if files is None else files
    targets = {directory / name: data for name, data in contents.items()}
    if not force and (present := [path for path in targets if path.exists()]):
        raise StateFileExistsError(present)
    written: list[Path] = []
    try:
        for path, data in targets.items():
            written.append(_beside(path))
            _write(system, path, data)
        for path in targets:
            _attempt_rename(system, path)
    except StateFileIOError:
        _remove(system, written)
        raise
    try:
        system.sync_directory(directory)
    except OSError as error:
        raise StateFileIOError("flushing", directory, error) from error


def _content(files: Files, path: Path) -> bytes | None:
    try:
        return files.read(path)
    except FileNotFoundError:
        return None


def _beside(path: Path) -> Path:
    return path.with_name(path.name + _SUFFIX)


def _write(files: Files, path: Path, data: bytes) -> None:
    try:
        fd = files.create(_beside(path))
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[files.write(fd, rest) :]
            files.fsync(fd)
        finally:
            files.close(fd)
    except OSError as error:
        raise StateFileIOError("writing", path, error) from error


def _attempt_rename(files: Files, path: Path) -> None:
    try:
        files.rename(_beside(path), path)
    except OSError as error:
        raise StateFileIOError("replacing", path, error) from error


def _remove(files: Files, paths: Iterable[Path]) -> None:
    for path in paths:
        # Already renamed, never made, or on a broken disk: the first error is reported.
        with suppress(OSError):
            files.remove(path)
