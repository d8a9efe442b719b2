from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.pods.model import GivenDevice
from agent.tools.replay.play import Admit, Remove, Restart, Start
from agent.tools.replay.reading import ReplayError, load_sequence
from sysfs.mask import Mask
from tests.agent.tools.replay.texts import HEAD, admitting, sequence, text

if TYPE_CHECKING:
    from pathlib import Path


def problems(folder: Path, *steps: str, head: str = HEAD) -> list[str]:
    with pytest.raises(ReplayError) as caught:
        sequence(folder, *steps, head=head)
    return [str(problem) for problem in caught.value.problems]


def test_it_has_the_name_it_states_or_that_of_its_file(tmp_path: Path) -> None:
    assert sequence(tmp_path).name == str(tmp_path / "sequence.yaml")
    assert sequence(tmp_path, head=f"name: mine\n{HEAD}").name == "mine"


def test_it_begins_with_the_rules_of_its_configuration_on_its_host(tmp_path: Path) -> None:
    assert str(sequence(tmp_path).rules.assignable_cpus) == "1-15"


def test_json_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "sequence.json"
    file.write_text('{"host": {"shape": {}}, "steps": []}')
    assert load_sequence(file).steps == ()


class TestSteps:
    def test_pods_are_admitted_removed_and_their_containers_started(self, tmp_path: Path) -> None:
        found = sequence(
            tmp_path, admitting("a"), "start: {pod: a, container: main}", "remove: default/a"
        )
        (_, admit), *others = found.steps
        assert isinstance(admit, Admit)
        assert (admit.name, admit.uid, admit.pod.name) == ("default/a", "uid-a", "a")
        assert others == [
            (1, Start("default/a", "uid-a", "main")),
            (2, Remove("default/a", "uid-a")),
        ]

    def test_a_pod_may_stand_in_a_file_beside_the_sequence(self, tmp_path: Path) -> None:
        (tmp_path / "pod.yaml").write_text(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
        )
        ((_, admit),) = sequence(tmp_path, "admit: pod.yaml").steps
        assert isinstance(admit, Admit)
        assert admit.name == "default/p"

    def test_the_same_file_in_another_step_is_another_pod(self, tmp_path: Path) -> None:
        (tmp_path / "pod.yaml").write_text(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
        )
        (_, one), (_, two) = sequence(tmp_path, "admit: pod.yaml", "admit: pod.yaml").steps
        assert isinstance(one, Admit)
        assert isinstance(two, Admit)
        assert one.uid != two.uid

    def test_a_pod_may_be_admitted_several_times_each_with_a_number(self, tmp_path: Path) -> None:
        found = sequence(tmp_path, admitting("a", times=2), "remove: a-2").steps
        assert [(number, getattr(step, "uid", "")) for number, step in found] == [
            (0, "uid-a-1"),
            (0, "uid-a-2"),
            (1, "uid-a-2"),
        ]

    def test_a_restart_keeps_the_host_or_the_configuration_that_it_does_not_name(
        self, tmp_path: Path
    ) -> None:
        found = sequence(
            tmp_path,
            "restart: {host: {shape: {packages: 1}}}",
            "restart: {config: {cpuManagerPolicy: static, reservedSystemCPUs: 0-1}}",
            "restart:",
        )
        restarts = [step for _, step in found.steps if isinstance(step, Restart)]
        assignable = [str(step.rules.assignable_cpus) for step in restarts]
        assert assignable == ["1-7", "2-7", "2-7"]

    def test_the_gate_in_force_decides_how_a_pod_is_defaulted(self, tmp_path: Path) -> None:
        off = HEAD.replace("static,", "static, featureGates: {PodLevelResources: false},")
        pod = (
            "admit: {metadata: {name: p}, spec: {resources: {limits: {cpu: 2}},"
            " containers: [{name: c}]}}"
        )
        requests = []
        for head in (HEAD, off):
            ((_, admit),) = sequence(tmp_path, pod, head=head).steps
            assert isinstance(admit, Admit)
            assert admit.pod.resources is not None
            requests.append("cpu" in admit.pod.resources.requests)
        assert requests == [True, False]


class TestMistakes:
    def test_all_of_them_are_reported_with_line_and_path(self, tmp_path: Path) -> None:
        head = (
            "host: {shape: {packages: none}}\n"
            "config: {cpuManagerPolicy: sttic, reservedSystemCPUs: '0'}\n"
            "extra: 1\n"
        )
        found = problems(
            tmp_path,
            "admit: {metadata: {name: p}, spec: {containers: [{name: c, resources:"
            " {limits: {cpu: two}}}]}}",
            "remove: other",
            head=head,
        )
        assert [line.partition(": ")[0] for line in found] == [f"line {n}" for n in (1, 2, 3, 5, 6)]
        assert "host.shape.packages: expected a whole number" in found[0]
        assert "config.cpuManagerPolicy" in found[1]
        assert 'unknown key "extra"' in found[2]
        assert "steps[0].admit.spec.containers[0].resources.limits.cpu" in found[3]
        assert 'no step before this one admits a pod "other"' in found[4]

    def test_a_configuration_that_does_not_fit_the_host(self, tmp_path: Path) -> None:
        (problem,) = problems(tmp_path, head=HEAD.replace('"0"', '"77"'))
        assert problem == (
            "line 2: config.reservedSystemCPUs: this host has no CPU 77; its CPUs are 0-15"
        )

    def test_settings_that_contradict_each_other(self, tmp_path: Path) -> None:
        (problem,) = problems(
            tmp_path, head="host: {shape: {}}\nconfig: {cpuManagerPolicy: static}\n"
        )
        assert problem.startswith("line 2: config")

    def test_a_pod_that_the_api_server_would_reject(self, tmp_path: Path) -> None:
        (problem,) = problems(
            tmp_path, "admit: {metadata: {name: UP}, spec: {containers: [{name: c}]}}"
        )
        assert problem.startswith("line 4: steps[0].admit.metadata.name")

    def test_a_file_with_mistakes_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n")
        (problem,) = problems(tmp_path, "admit: pod.yaml")
        assert f"steps[0].admit: {tmp_path}/pod.yaml: " in problem
        assert "spec" in problem

    @pytest.mark.parametrize(
        ("step", "problem"),
        [
            ("admit: absent.yaml", "No such file"),
            ("admit:", "admit needs a pod, or the name of a file"),
            ("admit: [1]", "expected a text"),
            ("remove:", "remove says nothing"),
            ("remove: a\n  admit: b", "a step is one of admit, remove, start, restart"),
            ("stop: a", 'unknown key "stop"'),
            ("ignored: stop", 'unknown key "ignored"'),
            ("restart: {hots: {}}", 'unknown key "hots"; did you mean "host"?'),
            ("start: {pod: a}", "pod and container are needed"),
            ("start: {pod: a, container: x}", 'the pod has no container "x", only main'),
            ("remove: a\n  times: 2", "times belongs to admit"),
        ],
    )
    def test_a_step_that_is_none(self, tmp_path: Path, step: str, problem: str) -> None:
        found = problems(tmp_path, admitting("a"), step)
        assert any(problem in line for line in found), found
        assert all("steps[1]" in line for line in found)

    @pytest.mark.parametrize("number", ["0", "1001", "many"])
    def test_times_is_a_small_number(self, tmp_path: Path, number: str) -> None:
        step = f"admit: absent.yaml\n  times: {number}"
        _, problem = problems(tmp_path, step)
        assert "steps[0].times: expected a whole number from 1 to 1000" in problem

    def test_host_and_steps_are_needed(self, tmp_path: Path) -> None:
        file = tmp_path / "empty.yaml"
        file.write_text("name: nothing\n")
        with pytest.raises(ReplayError) as caught:
            load_sequence(file)
        assert [p.message for p in caught.value.problems] == ["host is missing", "steps is missing"]

    def test_the_error_on_a_pods_manifest_names_what_decides_it(self, tmp_path: Path) -> None:
        file = tmp_path / "pod.yaml"
        file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n")
        with pytest.raises(ReplayError) as caught:
            load_sequence(file)
        [problem] = caught.value.problems
        assert "'numawarden replay --from-live' decides it" in problem.message

    def test_a_text_that_is_not_a_document(self, tmp_path: Path) -> None:
        file = tmp_path / "broken.yaml"
        file.write_text("host: [")
        with pytest.raises(ReplayError, match="this is not YAML"):
            load_sequence(file)


def test_the_helper_writes_what_it_says() -> None:
    assert text("remove: a").endswith("steps:\n  - remove: a\n")


class TestDevicesOfTheKubelet:
    """What the kubelet gave to the containers of a pod stands beside the pod, by container."""

    HEAD = HEAD.replace("config: {", "config: {agent: {kubelet: {enabled: true}}, ")

    def test_each_has_its_nodes_or_none_that_are_known(self, tmp_path: Path) -> None:
        given = {"main": {"x.org/nic": {"n0": "0-1", "n1": 1, "n2": ""}, "x.org/gpu": {"g": "0"}}}
        step = admitting("a", kubeletDevices=given)
        ((_, admit),) = sequence(tmp_path, step, head=self.HEAD).steps
        assert isinstance(admit, Admit)
        assert admit.pod.given_devices == {
            "main": (
                GivenDevice("x.org/nic", "n0", Mask.of(0, 1)),
                GivenDevice("x.org/nic", "n1", Mask.of(1)),
                GivenDevice("x.org/nic", "n2"),
                GivenDevice("x.org/gpu", "g", Mask.of(0)),
            )
        }

    @pytest.mark.parametrize(
        ("given", "more", "mistake"),
        [
            ({"Main": {}}, {}, 'unknown key "Main"; did you mean "main"?'),
            ({"main": {"x.org/nic": {"n0": "one"}}}, {}, "is not a list of NUMA nodes"),
            ({"main": {"x.org/nic": ["n0"]}}, {}, "expected a mapping"),
            ({}, {"times": 2}, "the same devices cannot be given to several pods"),
        ],
    )
    def test_what_says_nothing_of_devices_is_a_mistake(
        self, tmp_path: Path, given: object, more: dict[str, int], mistake: str
    ) -> None:
        step = admitting("a", kubeletDevices=given, **more)
        (found,) = problems(tmp_path, step, head=self.HEAD)
        assert "kubeletDevices" in found
        assert mistake in found

    def test_they_need_a_kubelet_beside_the_agent(self, tmp_path: Path) -> None:
        given = {"main": {"x.org/nic": {"n0": "1"}}}
        (found,) = problems(tmp_path, admitting("a", kubeletDevices=given))
        assert "set agent.kubelet.enabled to true in config" in found

    def test_they_belong_to_an_admission(self, tmp_path: Path) -> None:
        step = "{remove: a, kubeletDevices: {}}"
        found = problems(tmp_path, admitting("a"), step, head=self.HEAD)
        assert any("kubeletDevices belongs to admit" in each for each in found)
