from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest import emulator, host, image
from tests.guest.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_disk_is_found_by_the_signature_that_it_has() -> None:
    signature = int.from_bytes(image._boot_record()[440:444], "little")
    name = f"PARTUUID={signature:08x}-01"
    assert f"root={name} " in emulator.KERNEL_ARGUMENTS


def test_a_user_other_than_root_is_rejected_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(host, "provide", lambda _: None)
    assert main(["--cache", str(tmp_path / "cache")]) == 2
    assert "making the guest image needs root" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []
