"""The site of the documentation: every page is in it, links lead somewhere, nothing is remote."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.site.repository import linked, rewritten

ROOT = Path(__file__).resolve().parents[2]
#: What a browser fetches without being asked to; a link (`<a href>`) is not.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|object)\b[^>]*\b(?:src|data)=["']?((?:https?:)?//[^"'> ]+)"""
    r"""|<link\b[^>]*\bhref=["']?((?:https?:)?//[^"'> ]+)"""
)
IMPORTED = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')]+)""")


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    pages = [file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")]
    # A README is the first page of its folder.
    names = [page.with_name(page.name.replace("README", "index")) for page in pages]
    assert len(names) > 20
    assert [name for name in names if not (site / name.with_suffix(".html")).is_file()] == []


def test_what_pages_link_to_outside_of_docs_is_in_the_site(site: Path) -> None:
    assert (site / "project/index.html").is_file()  # the README
    config = site / "project/deploy/config.yaml"
    assert config.read_text() == (ROOT / "deploy/config.yaml").read_text()
    listing = (site / "project/deploy/examples/index.html").read_text()
    assert 'href="mixed.yaml"' in listing
    assert (site / "project/deploy/examples/mixed.yaml").is_file()


def test_the_page_of_the_configuration_is_made_with_the_site(site: Path) -> None:
    page = (site / "configuration.html").read_text()
    assert 'id="agentisolation"' in page
    assert not (ROOT / "docs/configuration.md").exists()


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = {
        (str(page.relative_to(site)), "".join(found))
        for page in pages
        for found in LOADED.findall(page.read_text())
    }
    imported = {
        (str(sheet.relative_to(site)), found)
        for sheet in site.rglob("*.css")
        for found in IMPORTED.findall(sheet.read_text())
    }
    assert len(pages) > 20
    assert loaded | imported == set()


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "docs", checkout / "docs")
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, checkout / name)
    with (checkout / "docs/glossary.md").open("a") as page:
        page.write("\n[a](glossary.md#no-such-heading), [b](no-such-page.md)\n")
    built = build(checkout, tmp_path / "site")
    assert built.returncode != 0
    assert "no-such-heading" in built.stderr
    assert "no-such-page.md" in built.stderr


def test_links_out_of_docs_lead_to_where_the_file_is_in_the_site() -> None:
    page = "[a](../deploy/config.yaml), [b](../README.md#on-a-host), [c](glossary.md), [d](#e)\n"
    assert list(linked("docs/cli.md", page)) == [
        "deploy/config.yaml",
        "README.md",
        "docs/glossary.md",
    ]
    assert rewritten("docs/contributing/x.md", "[a](../../deploy/config.yaml)") == (
        "[a](../project/deploy/config.yaml)"
    )
    assert rewritten("docs/cli.md", page) == (
        "[a](project/deploy/config.yaml), [b](project/README.md#on-a-host), [c](glossary.md),"
        " [d](#e)\n"
    )
    assert rewritten("README.md", "[a](docs/cli.md) [b](deploy/examples)") == (
        "[a](../cli.md) [b](deploy/examples/index.md)"
    )
