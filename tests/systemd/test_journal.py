from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systemd.journal import Journal, JournalError, encoded, is_journal
from tests.fakes.journal import fake_journal, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = st.builds(
    str.__add__,
    st.sampled_from(string.ascii_uppercase),
    st.text(string.ascii_uppercase + string.digits + "_", max_size=63),
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "socket")
    yield opened
    opened.close()


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_field_arrives_as_it_was_sent(fields: dict[str, str]) -> None:
    assert fields_of(encoded(fields)) == fields


def test_a_value_with_a_line_break_is_sent_with_its_length() -> None:
    assert encoded({"A": "x", "B": "1\n2"}) == b"A=x\nB\n\x03\0\0\0\0\0\0\x001\n2\n"


def test_half_a_character_is_escaped() -> None:
    assert encoded({"A": "\udce9"}) == b"A=\\udce9\n"


@pytest.mark.parametrize("name", ["", "a", "_PID", "1A", "A-B", "Ä", "A\n", "A" * 65])
def test_a_name_that_the_journal_would_drop_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a field"):
        encoded({name: "x"})


@pytest.mark.parametrize("size", [10, 100_000, 8 << 20])
def test_entries_of_every_size_arrive(tmp_path: Path, journal: Journal, size: int) -> None:
    with fake_journal(tmp_path / "socket") as received:
        journal.send({"MESSAGE": "m"})
        assert len(received.entries()) == 1
        before = len(list(Path("/proc/self/fd").iterdir()))
        journal.send({"MESSAGE": "m", "LONG": "x" * size})
        assert received.entries() == [{"MESSAGE": "m", "LONG": "x" * size}]
        assert received.files == (size > 1 << 20)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_journal_that_is_away_is_an_error_and_may_come_back(
    tmp_path: Path, journal: Journal
) -> None:
    with pytest.raises(JournalError, match="No such file") as away:
        journal.send({"MESSAGE": "1"})
    assert not away.value.full
    with fake_journal(tmp_path / "socket") as received:
        journal.send({"MESSAGE": "2"})
        assert received.entries() == [{"MESSAGE": "2"}]


def _filled(journal: Journal) -> int:
    """Return how many entries a journal takes that does not read."""
    for sent in range(100_000):
        try:
            journal.send({"MESSAGE": "m" * 1000})
        except JournalError:
            return sent
    raise AssertionError("the queue of the socket has no end")


def test_a_journal_that_does_not_keep_up_is_not_waited_for(
    tmp_path: Path, journal: Journal
) -> None:
    with fake_journal(tmp_path / "socket") as received:
        sent = _filled(journal)
        with pytest.raises(JournalError) as full:
            journal.send({"MESSAGE": "m" * 1000})
        assert full.value.full
        assert len(received.entries()) == sent
        journal.send({"MESSAGE": "again"})
        assert received.entries() == [{"MESSAGE": "again"}]


def test_only_the_descriptor_that_systemd_names_is_the_journal(tmp_path: Path) -> None:
    ours, other = (tmp_path / name for name in ("ours", "other"))
    with ours.open("w") as stream, other.open("w") as elsewhere:
        found = os.fstat(stream.fileno())
        environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert is_journal(stream.fileno(), environment)
        assert not is_journal(elsewhere.fileno(), environment)
        assert not is_journal(stream.fileno(), {})
        assert not is_journal(stream.fileno(), {"JOURNAL_STREAM": "nonsense"})
    assert not is_journal(9999, environment)
