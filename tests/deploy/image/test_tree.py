from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from agent.config.load import load_config_file
from deploy.building import BuildError
from deploy.dependencies import lock
from deploy.dependencies.lock import ROOT
from deploy.image import tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    tree.lay_out(tmp_path)
    return tmp_path


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_every_directory_that_the_baked_configuration_names_is_there(root: Path) -> None:
    config = load_config_file(root / tree.CONFIG)
    assert config.static_pod_path
    assert mode(root / config.static_pod_path.relative_to("/")) == 0o755
    assert mode(root / config.agent.state_directory.relative_to("/")) == 0o700
    assert mode(root / config.agent.socket_path.parent.relative_to("/")) == 0o750


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "staticPodPath: /pods\nagent: {stateDirectory: /kept, socketPath: /here/s}\n",
            {"/pods": 0o755, "/kept": 0o700, "/here": 0o750},
        ),
        ("{}\n", {"/var/lib/numawarden": 0o700, "/run/numawarden": 0o750}),
    ],
)
def test_directories_are_as_configured(tmp_path: Path, text: str, expected: dict[str, int]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert {str(path): mode for path, mode in tree.directories(file)} == expected


def test_the_image_has_the_configuration_the_health_check_and_the_licences(root: Path) -> None:
    pairs = {
        tree.CONFIG: "deploy/config.yaml",
        tree.HEALTH: "deploy/image/health.py",
        tree.LICENCES / "LICENSE": "LICENSE",
        tree.LICENCES / "THIRD-PARTY-LICENSES.txt": "THIRD-PARTY-LICENSES.txt",
    }
    for inside, source in pairs.items():
        assert (root / inside).read_bytes() == (ROOT / source).read_bytes()
    assert mode(root / tree.HEALTH) == 0o755
    first, *_ = (root / tree.HEALTH).read_text().splitlines()
    assert first == f"#!/{tree.PREFIX}/bin/python3"
    # Written by others, the agent would reject it.
    assert mode(root / tree.CONFIG) == 0o644


def test_what_is_installed_is_read_from_the_environment(tmp_path: Path) -> None:
    site = tmp_path / tree.PREFIX / f"lib/python{tree.PYTHON}/site-packages"
    for name, version in (("Some_Thing", "1.0"), ("other", "2")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert tree.installed(tmp_path) == {"some-thing": "1.0", "other": "2"}


def test_the_image_has_what_an_agent_beside_a_kubelet_imports() -> None:
    config = load_config_file(ROOT / "deploy/kubernetes/base/config.yaml")
    assert config.agent.kubelet.enabled
    assert {"grpcio", "protobuf"} <= {locked.name for locked in lock.read(tree.LOCK)}


def test_a_compiled_file_that_cannot_be_loaded_fails_the_build(tmp_path: Path) -> None:
    python = [sys.executable]
    compiled = find_spec("msgspec._core")
    assert compiled is not None
    assert compiled.origin is not None
    shutil.copy(compiled.origin, tmp_path)
    tree.require_loadable(python, tmp_path)
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel/broken.so").write_text("of another machine")
    with pytest.raises(BuildError, match=r"wheel/broken\.so: "):
        tree.require_loadable(python, tmp_path)
