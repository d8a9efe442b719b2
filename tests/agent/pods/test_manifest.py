from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods.manifest import derived_uid, load_pod, pod_from_document
from agent.pods.model import ContainerKind, ManifestError, Pod, QosClass, Quality, required
from agent.pods.requests import pod_memory_requests, pod_requests, qos_class
from agent.pods.validation import find_problems
from agent.yaml import Plain, from_plain
from tests.agent.pods.pods import amounts, resources

FULL = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 7b0c6f9e-2f0a-4a9c-8d5e-0e8f4b6a1c2d
  annotations: {note: "yes"}
spec:
  restartPolicy: Always
  hostNetwork: yes            # not read here, so not rejected
  resources:
    limits: {cpu: 4, memory: 2Gi}
  initContainers:
  - name: setup
    resources: {requests: {cpu: 500m}}
  - name: proxy
    restartPolicy: Always
    resources: {limits: {cpu: 1, memory: 64Mi}}
  containers:
  - name: main
    image: example.com/web:1
    ports: [{containerPort: 80}]
    volumeMounts: [{name: v, mountPath: /v}]
    resources: {limits: {cpu: "2", memory: 1Gi}}
  volumes:
  - name: v
    secret: {defaultMode: 0400}
"""


def _lines(text: str | bytes) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_pod(text, "pod.yaml")
    return [str(problem) for problem in caught.value.problems]


def _pod(spec: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}"


def _one(containers: str) -> str:
    return _pod(f"  containers: [{{name: a, resources: {containers}}}]\n")


def test_an_ordinary_pod_is_read_and_defaulted() -> None:
    pod = load_pod(FULL, "web.yaml")
    assert (pod.name, pod.namespace) == ("web", "shop")
    assert pod.uid == "7b0c6f9e-2f0a-4a9c-8d5e-0e8f4b6a1c2d"
    assert pod.annotations == {"note": "yes"}
    assert [(c.name, c.kind) for c in pod.all_containers()] == [
        ("setup", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("main", ContainerKind.APP),
    ]
    assert pod.containers[0].resources == resources("cpu=2 memory=1Gi", "cpu=2 memory=1Gi")
    assert pod.resources is not None
    assert pod.resources.limits == amounts("cpu=4 memory=2Gi")
    # The sidecar runs beside the app: 3 CPUs and 1088Mi together.
    assert pod.resources.requests == amounts("cpu=3 memory=1088Mi")


def test_ephemeral_containers_do_not_count_whatever_they_state() -> None:
    def totals(more: str) -> tuple[object, ...]:
        pod = load_pod(_one("{limits: {cpu: 2, memory: 1Gi}}") + more, "p")
        return (
            pod.all_containers(),
            qos_class(pod, pod_level_resources=True),
            pod_requests(pod, pod_level_resources=True),
            pod_memory_requests(pod, pod_level=False),
        )

    debug = "{name: debug, resources: {limits: {cpu: 9, memory: 9Gi, hugepages-2Mi: 2Mi}}}"
    assert totals(f"  ephemeralContainers: [{debug}]\n") == totals("")


def test_the_system_of_a_pod_is_read_and_has_to_be_one_that_kubernetes_knows() -> None:
    text = _one("{limits: {cpu: 2}}")
    assert [load_pod(text + more, "p").os for more in ("", "  os: {name: windows}\n")] == [
        "",
        "windows",
    ]
    with pytest.raises(ManifestError, match=r"spec\.os\.name.*plan9"):
        load_pod(text + "  os: {name: plan9}\n", "p")


def test_the_same_pod_in_json_is_the_same_pod() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 0.5}}}]},
    }
    text = _one("{limits: {cpu: 500m}}").replace("{name: p}", "{name: p, uid: u}")
    assert load_pod(json.dumps(document), "a") == load_pod(text, "b")


def test_a_value_nested_without_end_is_rejected() -> None:
    deep: Plain = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ManifestError, match="nested"):
        pod_from_document({"spec": deep}, "x")


def test_a_namespace_is_defaulted_a_stated_class_kept_and_null_resources_are_none() -> None:
    text = _pod("  resources:\n  containers:\n  - name: a\n    resources:\n      requests:\n")
    pod = load_pod(f"{text}status: {{qosClass: Guaranteed}}\n", "x")
    assert (pod.namespace, pod.status_qos) == ("default", QosClass.GUARANTEED)
    assert pod.resources is None


def test_a_pod_without_uid_gets_one_from_its_source_and_content() -> None:
    text = _pod("  containers: [{name: a}]\n")
    uid = load_pod(text, "x").uid
    assert len(uid) == 32
    assert load_pod(text.replace("[{name: a}]", "\n  - name: a"), "x").uid == uid
    assert load_pod(text, "y").uid != uid
    assert load_pod(text.replace("name: a", "name: b"), "x").uid != uid
    reordered = "spec: {containers: [{name: a}]}\nmetadata: {name: p}\nkind: Pod\napiVersion: v1\n"
    assert load_pod(reordered, "x").uid == uid


def test_all_mistakes_are_reported_at_once_with_path_and_line() -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  initContainers:
  - name: a
    restartPolicy: always
  containers:
  - name: a
    resources:
      requests:
        cpu: 2x
        memory: 010
      limit: {cpu: 2}
  - resources: []
"""
    expected = (
        (
            "line 8: spec.initContainers[0].restartPolicy",
            '"always" is not one of Always, OnFailure',
        ),
        ("line 13: spec.containers[0].resources.requests.cpu", '"2x" is not a quantity: write a'),
        ("line 14: spec.containers[0].resources.requests.memory", "leading zero is octal to some"),
        ("line 15: spec.containers[0].resources.limit", 'did you mean "limits"?'),
        ("line 16: spec.containers[1]", "name is missing"),
        ("line 16: spec.containers[1].resources", "expected a mapping, found a list"),
    )
    lines = _lines(text)
    assert len(lines) == len(expected)
    for line, (place, words) in zip(lines, expected, strict=True):
        assert line.startswith(f"{place}: ")
        assert words in line


@pytest.mark.parametrize("amount", ["gpu: 1", "hugepages-2Mi: 3Mi", "cpu: -1"])
def test_a_mistake_in_a_limit_is_none_in_a_request_that_is_not_stated(amount: str) -> None:
    limits = f"limits: {{memory: 1Gi, {amount}}}"
    alone = _lines(_pod(f"  containers: [{{name: a, resources: {{{limits}}}}}]\n"))
    assert [".limits." in line for line in alone] == [True]
    both = f"{limits}, {limits.replace('limits', 'requests')}"
    stated = _lines(_pod(f"  containers: [{{name: a, resources: {{{both}}}}}]\n"))
    assert len(stated) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: apps/v1\nkind: Deployment\n", "kind: expected Pod"),
        ("apiVersion: v1\nkind: pod\nspec: {}\n", 'found "pod"; did you mean "Pod"?'),
        ("kind: Job\nspec: {template: {}}\n", "such as that of its template"),
        ("metadata:\n\tname: x\n", "a tab stands before a value; indent with spaces"),
        ("kind: @x\n", "no value begins with '@'; put the text in quotes"),
        ("metadata: {name: p}\n", "apiVersion: expected v1, it is missing"),
        ("- a\n", "expected a mapping, found a list"),
        ("apiVersion: v1\nkind: Pod\n", "metadata is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: []\n", "found a list"),
        (_pod("  containers: []\n"), "at least one container"),
        (_pod("  initContainers: [{name: a}]\n"), "at least one container"),
        (_pod("  container: [{name: a}]\n"), 'unknown field; did you mean "containers"'),
        (_pod("  initcontainers: []\n  containers: [{name: a}]\n"), 'mean "initContainers"'),
        (_pod("  containers: [{name: a, resource: {}}]\n"), 'did you mean "resources"'),
        (_pod("  containers: [{name: on}]\n"), "boolean"),
        (_pod("  containers: [{name: 12:30}]\n"), "base 60"),
        (_pod("  containers: [{name: 5}]\n"), "the number 5"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {labels: {a: 1}}\nspec: {}\n", "the number 1"),
        (_pod("  containers: [{name: A}]\n"), "not a valid name"),
        (_pod("  containers: [{name: ''}]\n"), "is empty"),
        (_pod("  containers: [{name: a}]\nstatus: {qosClass: Best}\n"), "is not one of"),
    ],
)
def test_what_is_not_a_pod_is_rejected(text: str, message: str) -> None:
    assert any(message in line for line in _lines(text)), _lines(text)


@pytest.mark.parametrize(
    "uid", ["../x", "a/b", "a b", "..", ".", "-a", "a_b", "ü", "x" * 129, "a\n", "a\x00"]
)
def test_a_uid_that_could_leave_its_cgroup_or_clash_is_rejected(uid: str) -> None:
    document: Plain = {
        "metadata": {"name": "p", "uid": uid},
        "spec": {"containers": [{"name": "a"}]},
    }
    with pytest.raises(ManifestError, match=r"metadata\.uid"):
        pod_from_document(document, "x")


@pytest.mark.parametrize(
    ("resources", "path", "words"),
    [
        ("{requests: {cpu: 2}, limits: {cpu: 1}}", "requests.cpu", "above the limit"),
        ("{requests: {cpu: -1}}", "requests.cpu", "negative"),
        ("{requests: {gpu: 1}}", "requests.gpu", "not a resource"),
        ("{requests: {kubernetes.io/: 1}}", 'requests["kubernetes.io/"]', "not extended"),
        ("{requests: {example.com/gpu: 1}}", 'requests["example.com/gpu"]', "overcommitted"),
        (
            "{requests: {example.com/gpu: 1}, limits: {example.com/gpu: 2}}",
            'requests["example.com/gpu"]',
            "differ",
        ),
        ("{limits: {example.com/gpu: 0.5}}", 'limits["example.com/gpu"]', "whole number"),
        ("{limits: {hugepages-2Mi: 2Mi}}", "resources", "cpu or memory beside"),
        ("{limits: {cpu: 1, hugepages-2Mi: 3Mi}}", "limits.hugepages-2Mi", "whole number of pages"),
        ("{limits: {cpu: 1, hugepages-2048Ki: 2Mi}}", "limits.hugepages-2048Ki", "hugepages-2Mi"),
        ("{limits: {cpu: 1, hugepages-x: 2Mi}}", "limits.hugepages-x", "not a quantity"),
        ("{limits: {cpu: 1, hugepages-0: 2Mi}}", "limits.hugepages-0", "positive"),
    ],
)
def test_amounts_that_no_api_server_takes_are_wrong(resources: str, path: str, words: str) -> None:
    problems = [line for line in _lines(_one(resources)) if path in line]
    assert any(words in line for line in problems), _lines(_one(resources))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{containers: [{name: a, resources: {limits: {cpu: 2}}}],resources: {requests: {cpu: 1}}}",
         "cpu: the containers together request 2, more than the pod-level request of 1"),
        ("{containers: [{name: a, resources: {limits: {cpu: 2}}}], resources: {limits: {cpu: 1}}}",
         "spec.containers[0].resources.limits.cpu: the container's limit of 2 is above"),
        ("{containers: [{name: a, resources: {requests: {cpu: 2}}}],resources: {limits: {cpu: 1}}}",
         "spec.resources.requests.cpu: the request of 2 is above the limit of 1"),
        ("{containers: [{name: a}], resources: {limits: {example.com/gpu: 1}}}",
         "cannot be a pod-level resource"),
        ("{containers: [{name: a}], resources: {claims: []}}", "unknown key"),
        ("{containers: [{name: a}, {name: a}]}", "is also spec.containers[0].name"),
        ("{containers: [{name: a}], initContainers: [{name: a}]}", "give each container its own"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_in_a_pod_is_rejected(spec: str, words: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n"
    assert any(words in line for line in _lines(text)), _lines(text)


def test_a_manifest_above_the_limit_is_rejected_and_so_are_more_than_a_thousand_containers() -> (
    None
):
    with pytest.raises(ManifestError, match="more than the limit of 100"):
        load_pod(FULL, "x", max_bytes=100)
    many = "\n".join(f"  - name: c{i}" for i in range(1001))
    assert "1001 containers are more than 1000" in _lines(_pod(f"  containers:\n{many}\n"))[0]


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["a", "b", "1", "500m", "-1", "2Gi", "1e99", "Always", "", "../x", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["name", "uid", "resources", "requests", "limits", "cpu", "memory",
                         "hugepages-2Mi", "example.com/gpu", "restartPolicy", "\ud800"]),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
_CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c"])},
    optional={"resources": _VALUES, "restartPolicy": _VALUES},
)
_POD = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.just("p")}, optional={"uid": _VALUES}),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(_CONTAINER | _VALUES, max_size=3)},
            optional={"initContainers": st.lists(_CONTAINER, max_size=2), "resources": _VALUES},
        ),
    },
    optional={"status": _VALUES},
)


@given(_POD | _VALUES)
def test_any_document_is_a_sound_pod_or_a_manifest_error(document: object) -> None:
    with suppress(ManifestError):
        _assert_sound(pod_from_document(document, "x"))  # type: ignore[arg-type]  # generated JSON


@given(st.text() | st.binary())
def test_any_text_is_a_pod_or_a_manifest_error(text: str | bytes) -> None:
    with suppress(ManifestError):
        _assert_sound(load_pod(text, "x"))


@given(st.data())
def test_a_damaged_manifest_is_a_sound_pod_or_a_manifest_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(FULL)))
    end = data.draw(st.integers(start, min(start + 20, len(FULL))))
    inserted = data.draw(st.text(":{}[]-&*'\"\n \t#0123abcMi", max_size=6))
    with suppress(ManifestError):
        _assert_sound(load_pod(FULL[:start] + inserted + FULL[end:], "x"))


def _assert_sound(pod: Pod) -> None:
    assert not find_problems(pod)
    assert pod.containers
    assert pod.uid
    assert "/" not in pod.uid
    names = [container.name for container in pod.all_containers()]
    assert len(set(names)) == len(names)
    for container in pod.all_containers():
        of_container = container.resources
        for amount in (*of_container.requests.values(), *of_container.limits.values()):
            assert amount.nano >= 0


def test_derived_uids_are_those_of_earlier_versions() -> None:
    # A changed derivation would make every running static pod another pod.
    assert derived_uid(from_plain({"a": 1}), "f") == "8bbf6c54f1dc1e406ed161bac6d81dd5"


def test_the_overhead_of_a_runtime_class_is_read_and_checked() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec:\n  overhead: {cpu: %s}\n  containers: [{name: a}]\n"
    )
    assert load_pod(text % "250m", "x").overhead["cpu"].milli_value == 250
    with pytest.raises(ManifestError) as caught:
        load_pod(text % "-1", "x")
    assert [(p.path, p.line) for p in caught.value.problems] == [("spec.overhead.cpu", 5)]


def test_an_unknown_quality_in_the_annotation_is_named_with_its_path() -> None:
    text = FULL.replace('{note: "yes"}', '{agent.numawarden/require: "aligned, best"}')
    (line,) = _lines(text)
    assert "agent.numawarden/require" in line
    assert '"best" is not one of exclusive, aligned, whole-cores, near-device' in line


def test_what_the_annotation_requires_is_read_with_any_spaces() -> None:
    annotations = {"agent.numawarden/require": " aligned,, exclusive ,"}
    assert required(annotations) == {Quality.ALIGNED, Quality.EXCLUSIVE}
    assert required({}) == frozenset()
