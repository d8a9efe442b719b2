from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest import emulator, host, image
from tests.guest.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_boot_record_names_one_linux_partition_that_fits() -> None:
    record = image._boot_record()
    assert len(record) == 512
    assert record[510:] == b"\x55\xaa"
    assert record[450] == 0x83
    start = int.from_bytes(record[454:458], "little")
    sectors = int.from_bytes(record[458:462], "little")
    assert start * 512 == image.ROOT_OFFSET
    assert sectors * 512 == image.ROOT_SIZE
    assert record[462:510] == bytes(48)


def test_the_disk_is_found_by_the_signature_that_it_has() -> None:
    signature = int.from_bytes(image._boot_record()[440:444], "little")
    name = f"PARTUUID={signature:08x}-01"
    assert f"root={name} " in emulator.KERNEL_ARGUMENTS


def test_recipe_files_have_entries_and_no_duplicates() -> None:
    for name in ("packages", "excluded", "units"):
        entries = list(image._entries(name))
        assert entries
        assert len(entries) == len(set(entries))


def test_who_is_not_root_is_told_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(host, "provide", lambda _: None)
    assert main(["--cache", str(tmp_path / "cache")]) == 2
    assert "making the guest image needs root" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []
