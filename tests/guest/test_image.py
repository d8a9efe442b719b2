from __future__ import annotations

from tests.guest import image


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
    assert name in (image.RECIPE / "rootfs/etc/fstab").read_text()


def test_recipe_files_have_entries_and_no_duplicates() -> None:
    for name in ("packages", "excluded", "units"):
        entries = list(image._entries(name))
        assert entries
        assert len(entries) == len(set(entries))
