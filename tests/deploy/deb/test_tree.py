from __future__ import annotations

import gzip
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from click import Context

from agent.cli.main import numawarden
from agent.config.load import load_config_file
from deploy.deb import tree
from deploy.deb.targets import TARGETS
from deploy.dependencies.lock import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree.lay_out(tmp_path)
    tree.changelogs(tmp_path, "1-1~debian.13", TARGETS["debian-13"], 0, "Some One <one@localhost>")
    return tmp_path


def test_the_package_has_unit_group_and_configuration_as_in_the_checkout(root: Path) -> None:
    pairs = {
        "usr/lib/systemd/system/numawarden.service": "deploy/numawarden.service",
        "usr/lib/sysusers.d/numawarden.conf": "deploy/sysusers.conf",
        "usr/lib/tmpfiles.d/numawarden.conf": "deploy/tmpfiles.conf",
        "etc/numawarden/config.yaml": "deploy/config.yaml",
    }
    for inside, source in pairs.items():
        assert (root / inside).read_bytes() == (ROOT / source).read_bytes()
    config = load_config_file(root / tree.CONFIG)
    assert config.static_pod_path
    assert (root / config.static_pod_path.relative_to("/")).is_dir()


def test_the_unit_starts_and_documents_what_the_package_brings(root: Path) -> None:
    unit = (root / "usr/lib/systemd/system/numawarden.service").read_text()
    program, *arguments = re.findall(r"(?m)^ExecStart=(.*)$", unit)[0].split()
    assert program == str((root / "usr/bin/numawarden").readlink())
    assert (root / arguments[-1].lstrip("/")).is_file()
    # `systemd-analyze verify` needs man-db for a page of man, which minimal hosts do not have.
    [file] = re.findall(r"(?m)^Documentation=(.*)$", unit)
    assert (root / file.removeprefix("file:///")).is_file()


def test_every_shell_completes_the_command(root: Path) -> None:
    script = root / "usr/share/bash-completion/completions/numawarden"
    shown = f'source "{script}" && complete -p numawarden'
    done = subprocess.run(["bash", "-c", shown], check=True, capture_output=True, text=True)
    assert "numawarden" in done.stdout
    for shell in ("bash", "zsh", "fish"):
        script = root / tree.COMPLETIONS[shell]
        assert f"_NUMAWARDEN_COMPLETE={shell}_complete" in script.read_text()


def test_every_command_has_its_manual_page_with_the_packages_date(tmp_path: Path) -> None:
    tree.manuals(tmp_path, 0)
    pages = {path.name: path for path in (tmp_path / "usr/share/man/man1").iterdir()}
    expected = {f"numawarden-{name}.1.gz" for name in numawarden.list_commands(Context(numawarden))}
    assert {"numawarden.1.gz", *expected} <= set(pages)
    assert rb"1970\-01\-01" in gzip.decompress(pages["numawarden.1.gz"].read_bytes())


def test_every_link_of_the_documentation_leads_to_a_file_of_the_package(root: Path) -> None:
    below = root / tree.DOCUMENTATION
    pages = [below / "README.md", *below.rglob("docs/**/*.md")]
    links = {
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text())
    }
    assert len(links) > 150
    missing = [(page.name, link) for page, link in links if not (page.parent / link).exists()]
    assert missing == []


def test_what_is_for_contributors_is_not_in_the_package_nor_linked(root: Path) -> None:
    below = root / tree.DOCUMENTATION
    assert not (below / "CONTRIBUTING.md").exists()
    assert not (below / "docs/contributing").exists()
    assert not (below / "docs/configuration.md").exists()
    assert (below / "deploy/config.yaml").is_file()
    text = "[a](../CONTRIBUTING.md#tests), [b](cli.md), [c](https://example.invalid)\n"
    assert tree.without_dead_links("docs/api.md", text, {"docs/cli.md"}) == (
        "a, [b](cli.md), [c](https://example.invalid)\n"
    )


def test_the_package_has_dashboards_alerts_and_opt_ins_but_no_tests(root: Path) -> None:
    below = root / tree.DOCUMENTATION
    for name in (
        *("docs/api.md", "docs/moving-a-node.md", "docs/openapi.json", "examples/mixed.yaml"),
        *("deploy/grafana/host.json", "deploy/grafana/fleet.json", "deploy/prometheus/alerts.yaml"),
        "deploy/writers.conf",
    ):
        assert (below / name).is_file(), name
    assert not list(below.rglob("*test*"))
    assert not list(below.rglob("__*"))


def test_the_alerts_of_the_package_name_its_own_runbooks(root: Path) -> None:
    alerts = (root / tree.DOCUMENTATION / "deploy/prometheus/alerts.yaml").read_text()
    assert "alerts.test.yaml" not in alerts
    urls = set(re.findall(r'(?m)^ +runbook_url: "([^"#]+)#', alerts))
    assert urls == {f"file:///{tree.DOCUMENTATION}/docs/operations.md"}
    assert all((root / url.removeprefix("file:///")).is_file() for url in urls)


def test_the_documentation_is_at_most_three_megabytes(root: Path) -> None:
    files = [file for file in (root / tree.DOCUMENTATION).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3_000_000


def test_the_changelog_of_the_package_has_its_version_and_time(root: Path) -> None:
    packed = root / "usr/share/doc/numawarden/changelog.Debian.gz"
    first, *_, last = gzip.decompress(packed.read_bytes()).decode().splitlines()
    assert first == "numawarden (1-1~debian.13) trixie; urgency=medium"
    assert last == " -- Some One <one@localhost>  Thu, 01 Jan 1970 00:00:00 +0000"


def test_a_settled_tree_has_one_time_and_nothing_that_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o777)
    for name, mode in (("bin/run", 0o777), ("data", 0o600), ("tool", 0o755)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("/nowhere")
    tree.settle(tmp_path, 7)
    found = {path.name: path.lstat() for path in (tmp_path, *tmp_path.rglob("*"))}
    assert {int(status.st_mtime) for status in found.values()} == {7}
    modes = {name: status.st_mode & 0o777 for name, status in found.items() if name != "link"}
    expected = {"bin": 0o755, "run": 0o755, "data": 0o644, "tool": 0o644, tmp_path.name: 0o755}
    assert modes == expected
