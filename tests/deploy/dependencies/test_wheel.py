from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import BytesParser
from typing import TYPE_CHECKING

import pytest

from agent import __version__
from deploy.dependencies.__main__ import LICENCES, SBOM
from deploy.dependencies.lock import ROOT

if TYPE_CHECKING:
    from pathlib import Path

INFO = f"numawarden-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run([*command, "--outdir", directory, ROOT], check=True, capture_output=True)
    [wheel] = directory.glob("*.whl")
    return wheel


def test_the_wheel_has_the_bill_where_pep_770_has_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{INFO}/sboms/numawarden.cdx.json") == SBOM.read_bytes()


def test_the_wheel_has_its_own_and_the_third_party_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = BytesParser().parsebytes(archive.read(f"{INFO}/METADATA"))
        assert set(metadata.get_all("License-File", [])) == {"LICENSE", LICENCES.name}
        assert archive.read(f"{INFO}/licenses/{LICENCES.name}") == LICENCES.read_bytes()
        assert archive.read(f"{INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
