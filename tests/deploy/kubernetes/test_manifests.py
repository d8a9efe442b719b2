"""The objects of deploy/kubernetes: what they need, what they name, what they may do."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent import __version__
from agent.config.load import load_config, load_config_file
from agent.config.model import Config, ConfigError
from deploy.dependencies.lock import ROOT
from deploy.image import archive, tree
from tests.deploy.kubernetes.objects import (
    CHART,
    COMPONENTS,
    KUBERNETES,
    daemon_set,
    documents,
    pod_of,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


UNIT = ROOT / "deploy/numawarden.service"
CONFIG = KUBERNETES / "base/config.yaml"


@pytest.fixture
def pod() -> dict[str, Any]:
    return pod_of(daemon_set())


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def config() -> Config:
    return load_config_file(CONFIG)


@pytest.fixture
def unit() -> dict[str, str]:
    lines = (line for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    return dict(line.split("=", 1) for line in lines)


def kustomizations() -> list[Path]:
    return sorted(KUBERNETES.rglob("kustomization.yaml"))


def references_of(kustomization: Path) -> Iterator[Path]:
    """Yield the files and directories that a kustomization names."""
    (document,) = documents(kustomization)
    names = [*document.get("resources", []), *document.get("components", [])]
    names += [patch["path"] for patch in document.get("patches", []) if "path" in patch]
    for made in document.get("configMapGenerator", []):
        names += made["files"]
    yield from (kustomization.parent / name for name in names)


@pytest.mark.parametrize("file", kustomizations(), ids=lambda file: file.parent.name)
def test_what_a_kustomization_names_is_there_and_nothing_is_forgotten(file: Path) -> None:
    named = {path.resolve() for path in references_of(file)}
    assert all(path.exists() for path in named)
    beside = {path.resolve() for path in file.parent.iterdir()} - {file.resolve()}
    assert beside <= named


def test_every_component_is_tested() -> None:
    found = {folder.name for folder in (KUBERNETES / "components").iterdir()}
    assert found == set(COMPONENTS)


def test_the_image_is_the_one_that_is_built(container: dict[str, Any]) -> None:
    assert container["image"] == f"{archive.NAME}:{__version__}"


def test_no_image_has_a_tag_that_moves() -> None:
    for file in KUBERNETES.rglob("*.yaml"):
        assert ":latest" not in file.read_text(), file


def test_the_agent_has_its_configuration(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["args"] == ["agent", "--config", f"/{tree.CONFIG}"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "config")
    # A directory of a ConfigMap is writable for all users: the agent would not read from there.
    assert (mount["mountPath"], mount["subPath"]) == (f"/{tree.CONFIG}", CONFIG.name)
    assert {"name": "config", "configMap": {"name": "numawarden"}} in pod["volumes"]


def test_the_configuration_has_no_mistakes_and_is_for_a_node(config: Config) -> None:
    assert config.agent.kubelet.enabled
    assert config.cgroup_driver == "systemd"
    assert config.static_pod_path is None


def test_values_of_the_chart_are_the_configuration_of_the_base() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["config"] == yaml.safe_load(CONFIG.read_text())


@pytest.mark.parametrize("component", COMPONENTS)
def test_settings_of_components_are_keys_of_the_agent(component: str) -> None:
    settings = [setting.replace("$(HOST_IP)", "192.0.2.1") for setting in settings_of(component)]
    assert settings
    load_config_file(CONFIG, settings)
    (key, _, _) = settings[0].partition("=")
    with pytest.raises(ConfigError):
        load_config(CONFIG.read_text(), "config.yaml", [f"{key}x=1"])


def test_what_the_agent_may_do_is_as_in_the_unit(
    pod: dict[str, Any], container: dict[str, Any], unit: dict[str, str]
) -> None:
    security = container["securityContext"]
    added = [f"CAP_{name}" for name in security["capabilities"]["add"]]
    assert added == unit["CapabilityBoundingSet"].split()
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["allowPrivilegeEscalation"] is (unit["NoNewPrivileges"] != "yes")
    assert security["readOnlyRootFilesystem"] is (unit["ProtectSystem"] == "strict")
    assert security["privileged"] is False
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"} & set(pod)


def test_memory_and_time_to_stop_are_bounded_as_in_the_unit(
    pod: dict[str, Any], container: dict[str, Any], unit: dict[str, str]
) -> None:
    assert container["resources"]["limits"] == {"memory": f"{unit['MemoryMax']}i"}
    assert pod["terminationGracePeriodSeconds"] == int(unit["TimeoutStopSec"])
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == int(unit["TimeoutStartSec"])


def test_probes_ask_where_the_agent_answers(container: dict[str, Any], config: Config) -> None:
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("metrics", config.agent.metrics.port)
    paths = []
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["host"], asked["port"]) == (config.agent.metrics.address, "metrics")
        paths.append(asked["path"])
    assert paths == ["/healthz", "/healthz", "/readyz"]


def test_what_the_configuration_names_is_mounted(container: dict[str, Any], config: Config) -> None:
    mounts = {Path(one["mountPath"]): one for one in container["volumeMounts"]}
    agent = config.agent
    written = (agent.cgroup_mount, agent.state_directory, agent.socket_path.parent)
    for directory in written:
        assert not mounts[directory].get("readOnly", False)
    assert agent.kubelet.nri_socket is not None
    assert agent.kubelet.nri_socket.parent in mounts
    others = set(mounts) - set(written)
    assert all(mounts[path]["readOnly"] for path in others)
    kubelet = {path for path in others if agent.kubelet.directory in path.parents}
    assert {path.name for path in kubelet} == {
        *("pods-api", "pod-resources", "device-plugins"),
        *("cpu_manager_state", "memory_manager_state"),
    }


def test_volumes_and_mounts_belong_together(pod: dict[str, Any], container: dict[str, Any]) -> None:
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert list(volumes) == [one["name"] for one in container["volumeMounts"]]
    for mount in container["volumeMounts"]:
        host = volumes[mount["name"]].get("hostPath")
        if host is not None:
            # In the container everything has the path of the host, which the agent's errors name.
            assert host["path"] == mount["mountPath"]
            # Without a type a runtime makes a directory of what is missing, a file's too.
            assert host["type"] in ("Directory", "DirectoryOrCreate", "File")
    hosts = [one["hostPath"] for one in volumes.values() if "hostPath" in one]
    made = {host["path"] for host in hosts if host["type"] == "DirectoryOrCreate"}
    assert made == {"/var/lib/numawarden", "/run/numawarden"}  # what is the agent's own


def test_the_base_asks_the_api_server_for_nothing(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    kinds = {
        document["kind"]
        for file in (KUBERNETES / "base").glob("*.yaml")
        for document in documents(file)
        if "metadata" in document
    }
    assert kinds == {"Namespace", "ServiceAccount", "DaemonSet"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_with_a_role_has_a_token_and_others_have_none(component: str) -> None:
    folder = KUBERNETES / "components" / component
    patched = folder / "daemonset.yaml"
    pod = pod_of(documents(patched)[0]) if patched.exists() else {}
    assert pod.get("automountServiceAccountToken", False) is (folder / "rbac.yaml").exists()


@pytest.mark.parametrize("component", ["pods-endpoint", "version", "topology", "events"])
def test_a_role_is_bound_to_the_agents_service_account_alone(component: str) -> None:
    role, binding = documents(KUBERNETES / "components" / component / "rbac.yaml")
    assert role["metadata"]["name"] == binding["metadata"]["name"] == f"numawarden-{component}"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = {"kind": "ServiceAccount", "name": "numawarden", "namespace": "numawarden"}
    assert binding["subjects"] == [account]
    (rule,) = role["rules"]
    assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_the_device_plugin_of_exclusive_pods_is_off_unless_asked_for(config: Config) -> None:
    assert config.agent.kubelet.exclusive_resource == ""
    asked = load_config_file(CONFIG, settings_of("exclusive")).agent.kubelet
    assert asked.exclusive_resource == type(asked)().exclusive_resource
    assert settings_of("exclusive") == ["agent.kubelet.exclusiveResource=numawarden.dev/exclusive"]
    (patch,) = documents(KUBERNETES / "components/exclusive/daemonset.yaml")
    (mount,) = pod_of(patch)["containers"][0]["volumeMounts"]
    assert PurePosixPath(mount["mountPath"]).name == "device-plugins"
    assert mount["readOnly"] is False


@pytest.mark.parametrize(("component", "switch"), COMPONENTS.items())
def test_the_page_names_each_component_its_switch_and_rights(component: str, switch: str) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{component}` |"))
    assert f"`{switch}.enabled`" in row
    rights = row.split("|")[-2].strip()
    roles = KUBERNETES / "components" / component / "rbac.yaml"
    if not roles.exists():
        assert rights == "none"
        return
    (rule,) = documents(roles)[0]["rules"]
    assert rights == f"`{rule['resources'][0]}`: {', '.join(rule['verbs'])}"
