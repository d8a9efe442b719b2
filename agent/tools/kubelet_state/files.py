"""Both state files of a kubelet: read from its root directory, written there atomically."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.state.files import Files, OsFiles
from agent.tools.kubelet_state import cpu_file, memory_file
from agent.tools.kubelet_state.cpu_file import CpuFileVersion, read_cpu_state, write_cpu_state
from agent.tools.kubelet_state.errors import (
    NoStateFilesError,
    StateFileExistsError,
    StateFileIOError,
)
from agent.tools.kubelet_state.memory_file import (
    MemoryFileVersion,
    read_memory_state,
    write_memory_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.tools.kubelet_state.cpu_file import ContainerIds, CpuState
    from agent.tools.kubelet_state.memory_file import MemoryState

_SUFFIX: Final = ".numawarden-new"
_NAMES: Final = (cpu_file.FILE_NAME, memory_file.FILE_NAME)


class KubeletState(Struct, frozen=True):
    """What a kubelet's two files say; None where a file is not there."""

    cpu: CpuState | None = None
    memory: MemoryState | None = None


def encode_files(state: KubeletState, *, pod_level: bool) -> dict[str, bytes]:
    """Return the files by name, in the versions that a kubelet of that configuration writes.

    `pod_level` is the gate PodLevelResourceManagers: v3 (CPU) and v2 (memory) with it, else v2 and
    v1.
    """
    files: dict[str, bytes] = {}
    if state.cpu is not None:
        version = CpuFileVersion.V3 if pod_level else CpuFileVersion.V2
        files[cpu_file.FILE_NAME] = write_cpu_state(state.cpu, version)
    if state.memory is not None:
        of_memory = MemoryFileVersion.V2 if pod_level else MemoryFileVersion.V1
        files[memory_file.FILE_NAME] = write_memory_state(state.memory, of_memory)
    return files


def read_directory(
    directory: Path, containers: ContainerIds | None = None, files: Files | None = None
) -> KubeletState:
    """Return what the files of a directory say; `containers` is needed for a v1 file alone.

    Raises `NoStateFilesError`, `UnreadableStateFileError`, and `OSError` as the system does.
    """
    system = OsFiles() if files is None else files
    cpu_path, memory_path = (directory / name for name in _NAMES)
    of_cpu, of_memory = _content(system, cpu_path), _content(system, memory_path)
    if of_cpu is None and of_memory is None:
        raise NoStateFilesError(directory, _NAMES)
    return KubeletState(
        cpu=None if of_cpu is None else read_cpu_state(of_cpu, cpu_path, containers),
        memory=None if of_memory is None else read_memory_state(of_memory, memory_path),
    )


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
