"""The manifests of a command line: of files, directories, lists of kubectl and standard input."""

from __future__ import annotations

import re
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from agent.cli.errors import CommandError, ExitCode, WrongFileError, counted, lines_of, text_of
from agent.files import LARGEST, read_bounded, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: How the files of a directory end that are manifests.
_ENDINGS: Final = (".yaml", ".yml", ".json")
_LISTS: Final = ("List", "PodList")
#: What stands in every list of kubectl; to read each manifest here would take a command's time.
_LIST: Final = re.compile(rb"""\bkind["']?[ \t]*:[ \t]*["']?(?:Pod)?List\b""")
_ADDRESSES: Final = ("http:", "https:")


class ManifestText(NamedTuple):
    """The text of a manifest, how errors name it, and whether it is one of a list."""

    text: bytes
    name: str
    of_list: bool = False


def for_each_manifest(paths: Iterable[Path], act: Callable[[ManifestText], ExitCode]) -> ExitCode:
    """Do something with each manifest; return the first code that is not 0.

    A wrong manifest is reported, and the next one is tried. Any other error ends this: it would
    occur with every manifest. It says how many were not tried.
    """
    code, waiting = ExitCode.OK, deque[Path | ManifestText](_files(paths))
    while waiting:
        item = waiting.popleft()
        try:
            if isinstance(item, Path):
                waiting.extendleft(reversed(_read(item)))
                continue
            code_of_item = act(item)
        except Exception as error:
            if not isinstance(error, WrongFileError):
                if waiting:
                    name = item if isinstance(item, Path) else item.name
                    error.add_note(f"not tried: {counted(len(waiting), 'manifest')} after {name}")
                raise
            for line in lines_of(error):
                click.echo(line, err=True)
            code_of_item = error.code
        code = code or code_of_item
    return code


def _files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of a command line; those of a directory in the order of their names.

    Raises `CommandError` for a directory without a manifest, `OSError` if it cannot be read.
    """
    files: list[Path] = []
    for path in paths:
        if str(path) == "-" or not path.is_dir():
            files.append(path)
            continue
        from agent.sources.manifests import is_left_over  # noqa: PLC0415  # most name files

        manifests = sorted(
            file
            for file in path.iterdir()
            if file.suffix in _ENDINGS and not is_left_over(file.name) and not file.is_dir()
        )
        if not manifests:
            message = (
                f"{path}: no file of this directory has a name that ends in {', '.join(_ENDINGS)}; "
                "name a manifest, or a directory with manifests"
            )
            raise CommandError(message, ExitCode.BAD_INPUT)
        files += manifests
    return files


def _read(file: Path) -> list[ManifestText]:
    """Return the manifest of a file, or those of its list; `-` is standard input.

    Raises `WrongFileError` for a file that cannot be read, and for an empty list.
    """
    try:
        if str(file) == "-":
            return _manifests(take(sys.stdin.buffer, LARGEST, "-"), "standard input")
        return _manifests(read_bounded(file), str(file))
    except OSError as error:
        message = text_of(error)
        if str(file).startswith(_ADDRESSES):
            message += "; no address is read: curl -sf ADDRESS | numawarden admit -"
        raise WrongFileError(message, ExitCode.BAD_INPUT) from error


def _manifests(text: bytes, name: str) -> list[ManifestText]:
    if not _LIST.search(text):
        return [ManifestText(text, name)]
    from agent.yaml import UnreadableError  # noqa: PLC0415  # as below

    try:
        listed = _pods_of_list(text)
    except UnreadableError as error:
        raise WrongFileError(f"{name}: {error.problem}", ExitCode.BAD_INPUT) from error
    if listed is None:
        return [ManifestText(text, name)]
    if not listed:
        raise WrongFileError(f"{name}: the list has no items", ExitCode.BAD_INPUT)
    return [
        ManifestText(pod, f"{name}, items[{index}]", of_list=True)
        for index, pod in enumerate(listed)
    ]


def _pods_of_list(text: bytes) -> list[bytes] | None:
    """Return the items of a list as JSON, None for another document; raises `UnreadableError`."""
    from agent.yaml import (  # noqa: PLC0415  # which no other manifest needs here
        Field,
        MappingNode,
        ScalarNode,
        SequenceNode,
        json_of,
        read_document,
    )

    root = Field("", read_document(text))
    kind, items = root.child("kind"), root.child("items")
    if kind is None or kind.value not in _LISTS:
        return None
    listed = items.node.items if items and isinstance(items.node, SequenceNode) else ()
    pod = {"apiVersion": ScalarNode("v1"), "kind": ScalarNode("Pod")}  # not in items of a PodList
    return [
        json_of(MappingNode({**pod, **item.entries}) if isinstance(item, MappingNode) else item)
        for item in listed
    ]
