from __future__ import annotations

import pickle

import pytest

from sysfs.files import InconsistentTree, MalformedFile, MissingFile, SysfsError, UnreadableFile


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MissingFile("/s/online", "name the root"), ("/s/online", "no such file", "name the root")),
        (UnreadableFile("/s/x", "Permission denied"), ("/s/x", "Permission denied", "permissions")),
        (MalformedFile("/s/x", "0-z", "a list"), ("/s/x", "'0-z'", "a list", "capture it again")),
        (InconsistentTree("/s/x", "CPU 3 twice"), ("/s/x", "CPU 3 twice", "try once more")),
        (SysfsError("/s", "found", "do"), ("/s", "found", "do")),
    ],
)
def test_an_error_names_file_fault_and_remedy_in_one_line_in_every_process(
    error: SysfsError, words: tuple[str, ...]
) -> None:
    assert all(word in str(error) for word in words)
    assert "\n" not in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert (type(again), again.path, str(again)) == (type(error), words[0], str(error))
