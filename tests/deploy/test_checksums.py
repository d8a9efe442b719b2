from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

from deploy.dependencies.lock import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_checksums_have_everything_that_was_built_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a b.whl", "sub/x.deb", "SHA256SUMS"):
        (tmp_path / name).write_text(f"the text of {name}\n")
    for _ in range(2):
        make = ["make", "-s", "-C", str(ROOT), "checksums", f"DIST={tmp_path}"]
        subprocess.run(make, check=True, capture_output=True)
    expected = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("a b.whl", "sub/x.deb")
    }
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert {line[66:]: line[:64] for line in lines} == expected
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path, check=True)
