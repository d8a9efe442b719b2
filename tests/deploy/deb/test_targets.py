from __future__ import annotations

import itertools
import subprocess

import pytest

from deploy.building import BuildError, Commit
from deploy.deb import targets
from deploy.deb.targets import TARGETS

BOOKWORM = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
NOBLE = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n'
NAME = "0123456789abcdef"


@pytest.mark.parametrize(
    ("host", "names", "found"),
    [
        (BOOKWORM, [], ["debian-12"]),
        (NOBLE, [], ["ubuntu-24.04"]),
        (BOOKWORM, ["debian-13", "ubuntu-24.04"], ["debian-13", "ubuntu-24.04"]),
        ("ID=fedora\n", ["all"], list(TARGETS)),
    ],
)
def test_a_package_is_for_the_host_asked_for(host: str, names: list[str], found: list[str]) -> None:
    assert [target.name for target in targets.chosen(names, host)] == found


@pytest.mark.parametrize(("host", "names"), [("ID=fedora\n", []), (BOOKWORM, ["debian-1"])])
def test_where_there_is_no_package_the_others_are_listed(host: str, names: list[str]) -> None:
    with pytest.raises(BuildError, match=r"debian-12, debian-13, ubuntu-24\.04"):
        targets.chosen(names, host)


def older(first: str, second: str) -> bool:
    compare = ["dpkg", "--compare-versions", first, "lt", second]
    return subprocess.run(compare, check=False).returncode == 0


def test_versions_rise_with_commits_to_the_release_and_with_the_distribution() -> None:
    twelve, thirteen = TARGETS["debian-12"], TARGETS["debian-13"]
    rising = [
        targets.version("0.1.0", Commit("f" * 40, 1_700_000_000, tag="v0.1.0"), thirteen),
        targets.version("0.2.0", Commit("f" * 40, 1_800_000_000), twelve),
        targets.version("0.2.0", Commit("e" * 40, 1_800_000_001), twelve),
        targets.version("0.2.0", Commit("d" * 40, 1_800_000_002), twelve),
        targets.version("0.2.0", Commit("c" * 40, 1_700_000_000, tag="v0.2.0"), twelve),
        targets.version("0.2.0", Commit("c" * 40, 1_700_000_000, tag="v0.2.0"), thirteen),
        targets.version("0.2.1", Commit("b" * 40, 1_600_000_000), twelve),
    ]
    assert all(older(*pair) for pair in itertools.pairwise(rising)), rising


def test_only_a_tagged_commit_without_other_changes_is_the_release() -> None:
    target = TARGETS["debian-13"]
    assert targets.version("0.1.0", Commit(NAME, 0, tag="v0.1.0"), target) == "0.1.0-1~debian.13"
    for commit in (Commit(NAME, 0), Commit(NAME, 0, modified=True, tag="v0.1.0")):
        version = targets.version("0.1.0", commit, target)
        assert version.startswith("0.1.0~git19700101000000.01234567")
        assert ("modified" in version) == commit.modified
