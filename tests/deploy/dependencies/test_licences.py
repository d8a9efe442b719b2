from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from deploy.dependencies import licences, lock
from deploy.dependencies.__main__ import LICENCES
from deploy.dependencies.lock import DependencyError, Locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OSI = "Classifier: License :: OSI Approved ::"
THING = Locked("thing", "1.0", ("1" * 64,))


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("MIT", {"MIT"}),
        ("Apache-2.0 AND MIT", {"Apache-2.0", "MIT"}),
        ("GPL-2.0-or-later OR Apache-2.0", {"Apache-2.0"}),
        ("MIT AND (GPL-3.0-only OR BSD-3-Clause)", {"MIT", "BSD-3-Clause"}),
        ("GPL-3.0-only", set()),
        ("MIT AND GPL-3.0-only", set()),
        ("GPL-2.0-only WITH Classpath-exception-2.0", set()),
    ],
)
def test_one_of_alternatives_and_all_of_more_are_allowed(expression: str, chosen: set[str]) -> None:
    assert licences.choose(expression) == chosen


def test_a_licence_that_spdx_does_not_know_is_rejected() -> None:
    with pytest.raises(DependencyError, match="not an SPDX expression"):
        licences.choose("Do-What-You-Want")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return what installs a package "thing" 1.0 with lines of metadata and licence files."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return partial(_install, tmp_path)


def _install(tmp_path: Path, *fields: str, texts: tuple[str, ...] = ("LICENSE",)) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    names = ["METADATA", *texts]
    for name in texts:
        (info / name).parent.mkdir(parents=True, exist_ok=True)
        (info / name).write_text(f"the text of {name}\n")
    info.mkdir(exist_ok=True)
    head = ("Metadata-Version: 2.1", "Name: thing", "Version: 1.0", *fields)
    (info / "METADATA").write_text("\n".join(head) + "\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in names))


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        (["License-Expression: MIT OR Apache-2.0"], "MIT OR Apache-2.0"),
        (["License: BSD-3-Clause"], "BSD-3-Clause"),
        (["License: 3-Clause BSD License"], "BSD-3-Clause"),
        (["License: MIT", "License-Expression: PSF-2.0"], "PSF-2.0"),
        ([f"{OSI} MIT License"], "MIT"),
        (["License: as in the file", f"{OSI} Apache Software License"], "Apache-2.0"),
    ],
)
def test_the_licence_is_read_from_new_and_old_metadata(
    install: Callable[..., None], fields: list[str], expression: str
) -> None:
    install(*fields)
    assert [one.expression for one in licences.collect([THING])] == [expression]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["License-Expression: GPL-3.0-or-later"], "is licensed under GPL-3.0-or-later"),
        ([], "states no SPDX expression"),
        (["License: Proprietary"], "states no SPDX expression"),
        ([f"{OSI} MIT License", f"{OSI} Apache Software License"], "name 2 licences"),
    ],
)
def test_a_package_without_an_allowed_licence_is_rejected(
    install: Callable[..., None], fields: list[str], message: str
) -> None:
    install(*fields)
    with pytest.raises(DependencyError, match=message):
        licences.collect([THING])


def test_every_licence_file_is_rendered(install: Callable[..., None]) -> None:
    texts = ("licenses/LICENSE", "licenses/vendor/x/LICENSE", "NOTICE.txt")
    install("License-Expression: MIT", texts=texts)
    text = licences.render(licences.collect([THING]))
    assert "thing 1.0\nLicence: MIT\n" in text
    for name in ("LICENSE", "vendor/x/LICENSE", "NOTICE.txt"):
        assert f"--- {name} ---" in text
    for name in texts:
        assert f"the text of {name}\n" in text


def test_a_package_has_a_licence_text(install: Callable[..., None]) -> None:
    install("License-Expression: MIT", texts=())
    with pytest.raises(DependencyError, match="without a licence text"):
        licences.collect([THING])


def test_only_the_locked_version_counts(install: Callable[..., None]) -> None:
    install("License-Expression: MIT")
    with pytest.raises(DependencyError, match=r"thing 2\.0 is in the lock file, 1\.0 is installed"):
        licences.collect([Locked("thing", "2.0", THING.hashes)])
    with pytest.raises(DependencyError, match="other is in the lock file and not installed"):
        licences.collect([Locked("other", "1.0", THING.hashes)])


def test_the_file_that_is_shipped_has_every_locked_dependency_those_of_extras_too() -> None:
    shipped = LICENCES.read_text(encoding="utf-8")
    for one in lock.read(lock.GRPC):
        assert f"\n{one.name} {one.version}\nLicence: " in shipped
