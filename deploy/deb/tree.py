"""What a package holds besides the environment: unit, configuration, completion, manuals."""

from __future__ import annotations

import gzip
import os
import re
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from posixpath import normpath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from click.shell_completion import get_completion_class

from agent.cli.main import numawarden
from agent.config.load import load_config_file
from deploy.building import BuildError
from deploy.dependencies.lock import ROOT
from deploy.image.tree import PREFIX
from deploy.man import pages

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deploy.deb.targets import Target

NAME: Final = "numawarden"
CONFIG: Final = Path("etc/numawarden/config.yaml")
DOCUMENTATION: Final = Path("usr/share/doc") / NAME
SBOM: Final = Path("usr/share/sbom/numawarden.cdx.json")

#: Files of the checkout, and where they are below the root of a host.
COPIED: Final[Mapping[str, Path]] = {
    "deploy/config.yaml": CONFIG,
    "deploy/numawarden.service": Path("usr/lib/systemd/system/numawarden.service"),
    "deploy/sysusers.conf": Path("usr/lib/sysusers.d/numawarden.conf"),
    "deploy/tmpfiles.conf": Path("usr/lib/tmpfiles.d/numawarden.conf"),
    "deploy/deb/overrides": Path("usr/share/lintian/overrides") / NAME,
    "deploy/deb/copyright": DOCUMENTATION / "copyright",
    "THIRD-PARTY-LICENSES.txt": DOCUMENTATION / "THIRD-PARTY-LICENSES.txt",
}

#: The documentation and what it links to; below `DOCUMENTATION` it lies as in the checkout.
DOCUMENTS: Final = (
    *("*.md", "docs/**/*", "deploy/config.yaml", "deploy/*.conf", "deploy/*.service"),
    *("deploy/examples/*", "deploy/grafana/*", "deploy/kubernetes/**/*"),
    *("deploy/prometheus/*", "deploy/image/health.py", "deploy/image/packages"),
)
#: What of it is not for users, and the changelog, which has a name of its own (`changelogs`).
LEFT_OUT: Final = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "docs/contributing/*"),
    "deploy/prometheus/alerts.test.yaml",
)
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")

#: Manual pages, in a directory for each section.
MANUALS: Final = Path("usr/share/man")

#: Where each shell looks for the completion of a command.
COMPLETIONS: Final[Mapping[str, Path]] = {
    "bash": Path("usr/share/bash-completion/completions/numawarden"),
    "zsh": Path("usr/share/zsh/vendor-completions/_numawarden"),
    "fish": Path("usr/share/fish/vendor_completions.d/numawarden.fish"),
}


def lay_out(root: Path) -> None:
    """Add to a root what the same checkout gives every package; the root may hold more already."""
    for source, target in COPIED.items():
        _put(root / target, (ROOT / source).read_bytes())
    names = documents()
    for name in names:
        content = (ROOT / name).read_bytes()
        if name.endswith(".md"):
            content = without_dead_links(name, content.decode(), names).encode()
        _put(root / DOCUMENTATION / name, content)
    alerts = root / DOCUMENTATION / "deploy/prometheus/alerts.yaml"
    here = f'runbook_url: "file:///{DOCUMENTATION}/docs/'
    alerts.write_text(alerts.read_text().replace('runbook_url: "docs/', here))
    (root / DOCUMENTATION / "examples").symlink_to("deploy/examples")
    manifests = load_config_file(ROOT / "deploy/config.yaml").static_pod_path
    if manifests:
        (root / manifests.relative_to("/")).mkdir(parents=True)
    for shell, target in COMPLETIONS.items():
        _put(root / target, completion(shell).encode())
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/numawarden").symlink_to(f"/{PREFIX}/bin/numawarden")


def documents() -> list[str]:
    """Return the files of the checkout that are the package's documentation, by their paths."""
    files = (file for pattern in DOCUMENTS for file in ROOT.glob(pattern) if file.is_file())
    names = {str(file.relative_to(ROOT)) for file in files}
    return sorted(name for name in names if not any(fnmatch(name, out) for out in LEFT_OUT))


def without_dead_links(page: str, text: str, names: Collection[str]) -> str:
    """Return a page with the text alone of links to files that are not among the names."""

    def link(found: re.Match[str]) -> str:
        target = normpath(f"{Path(page).parent}/{found[2]}")
        there = target in names or any(name.startswith(f"{target}/") for name in names)
        return found[0] if there else found[1]

    return _LINK.sub(link, text)


def completion(shell: str) -> str:
    """Return the script with which a shell completes the command: bash, zsh or fish."""
    kind = get_completion_class(shell)
    if kind is None:
        raise BuildError(f"click completes no commands of {shell}")
    return kind(numawarden, {}, NAME, f"_{NAME.upper()}_COMPLETE").source()


def manuals(root: Path, epoch: int) -> None:
    """Add the manual pages of all commands; they have the day of `epoch`, in seconds."""
    with TemporaryDirectory(prefix="numawarden-man-") as scratch:
        for page in pages.write(Path(scratch), datetime.fromtimestamp(epoch, UTC).date()):
            section = f"man{page.suffix.removeprefix('.')}"
            _put(root / MANUALS / section / f"{page.name}.gz", _compressed(page.read_bytes()))


def changelogs(root: Path, version: str, target: Target, epoch: int, maintainer: str) -> None:
    """Add the project's changelog and the one of the package (Debian Policy, 12.7).

    `epoch` is the time of the package in seconds.
    """
    text = (ROOT / "CHANGELOG.md").read_bytes()
    _put(root / DOCUMENTATION / "changelog.gz", _compressed(text))
    time = datetime.fromtimestamp(epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    entry = (
        f"{NAME} ({version}) {target.codename}; urgency=medium\n\n"
        "  * The changes are in changelog.gz.\n\n"
        f" -- {maintainer}  {time}\n"
    )
    _put(root / DOCUMENTATION / "changelog.Debian.gz", _compressed(entry.encode()))


def settle(root: Path, epoch: int) -> None:
    """Give all that is below a root the modes of a package and one time, in seconds.

    Directories and what is in a `bin` can be executed, nothing is writable but by its owner.
    """
    for directory, names, files in os.walk(root, topdown=False):
        for path in (Path(directory) / name for name in (*files, *names)):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)
    os.utime(root, (epoch, epoch))


def _compressed(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)


def _put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
