from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tests.guest import emulator, host, image
from tests.guest.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def test_a_packed_kernel_is_unpacked_and_another_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unzstd(command: Sequence[str | Path]) -> str:
        """Stand in for the program, which not every host has."""
        *_, frame, option, target = map(Path, command)
        assert (command[0], str(option)) == ("zstd", "-o")
        target.write_bytes(b"unpacked " + frame.read_bytes())
        frame.unlink()
        return ""

    monkeypatch.setattr(host, "run", unzstd)
    packed, kernel = tmp_path / "vmlinuz", tmp_path / "vmlinux"
    size = b"\x10\0\0\0"
    for frame, unpacked in ((image.ZSTD_MAGIC + b"frame", True), (b"\xfd7zXZ\0frame", False)):
        payload = frame + size
        head = bytearray(4096)
        head[0x1F1] = 3
        head[0x248:0x250] = struct.pack("<II", 2048, len(payload))
        packed.write_bytes(bytes(head) + payload + b"what follows")
        image.unpack_kernel(packed, kernel)
        expected = b"unpacked " + frame if unpacked else packed.read_bytes()
        assert kernel.read_bytes() == expected
    assert sorted(file.name for file in tmp_path.iterdir()) == ["vmlinux", "vmlinuz"]


def test_a_user_other_than_root_is_rejected_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(host, "provide", lambda _: None)
    assert main(["--cache", str(tmp_path / "cache")]) == 2
    assert "making the guest image needs root" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []
