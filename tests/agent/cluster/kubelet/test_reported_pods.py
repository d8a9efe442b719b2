"""One reading of a pod: a manifest, the kubelet's JSON and its protobuf give the same one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.kubelet.pods import UnreadablePodError, pod_of, read_json, read_list
from agent.cluster.kubelet.pods_api import CORE_V1, read_message, read_messages
from agent.pods.manifest import load_pod
from agent.pods.model import ManifestError
from agent.rpc.messages import Messages
from tests.fakes.pods_api import container, pod_message

UID = "11111111-2222-3333-4444-555555555555"

#: As `kubectl get --raw` shows a pod of a Deployment that runs, without some that is passed over.
FROM_AN_API_SERVER: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "web-6d4cf56db6-x2x5p",
        "namespace": "shop",
        "uid": UID,
        "generation": 1,
        "creationTimestamp": "2026-11-22T20:00:00Z",
        "annotations": {"kubernetes.io/config.seen": "2026-11-22T20:00:00Z"},
        "ownerReferences": [{"kind": "ReplicaSet", "controller": True}],
        "managedFields": [{"fieldsV1": {"f:spec": {'k:{"name":"app"}': {".": {}}}}}],
    },
    "spec": {
        "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {}}]}}],
        "initContainers": [
            {
                "name": "proxy",
                "restartPolicy": "Always",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
            }
        ],
        "containers": [
            {
                "name": "app",
                "env": [{"name": "HOME", "value": "/"}, {"name": "NONE"}],
                "resources": {
                    "requests": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
                    "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
                    "claims": [{"name": "gpu"}],
                },
                "volumeMounts": [{"name": "pages", "mountPath": "/pages"}],
            },
            {"name": "aux", "resources": {}},
        ],
        "overhead": {"cpu": "250m"},
        "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "resources": {
            "requests": {"cpu": "4", "memory": "2Gi"},
            "limits": {"cpu": "4", "memory": "2Gi"},
        },
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-1"}],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": None,
        "containerStatuses": [{"name": "app", "state": {"running": {}}, "lastState": {}}],
    },
}
MANIFEST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-6d4cf56db6-x2x5p",
        "namespace": "shop",
        "uid": UID,
        "annotations": {"kubernetes.io/config.seen": "2026-11-22T20:00:00Z"},
    },
    "spec": {
        "initContainers": [
            {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"cpu": 1}}}
        ],
        "containers": [
            {
                "name": "app",
                "resources": {"limits": {"cpu": 2, "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
            },
            {"name": "aux"},
        ],
        "overhead": {"cpu": "250m"},
        "resources": {
            "limits": {"cpu": 4, "memory": "2Gi"},
            "requests": {"cpu": 4, "memory": "2Gi"},
        },
    },
}
#: Fields that the agent does not declare, to see that they are passed over.
MORE = Messages(
    "more",
    {
        "Pod": {"metadata": (1, "Metadata"), "spec": (2, "Spec")},
        "Metadata": {"generateName": (2, "string"), "managedFields": (17, "repeated string")},
        "Spec": {"volumes": (1, "repeated string"), "tolerations": (22, "repeated string")},
    },
)


def as_json(pod: dict[str, Any]) -> bytes:
    return json.dumps(pod).encode()


def as_message() -> bytes:
    """Return the pod of `MANIFEST` as a kubelet sends it, with fields that are not declared."""
    declared = pod_message(
        UID,
        "web-6d4cf56db6-x2x5p",
        containers=(container("app", "cpu=2 memory=1Gi hugepages-2Mi=4Mi"), {"name": "aux"}),
        init=(container("proxy", "cpu=1", restartPolicy="Always"),),
        pod_level="cpu=4 memory=2Gi",
        overhead="cpu=250m",
        annotations={"kubernetes.io/config.seen": "2026-11-22T20:00:00Z"},
    )
    more = MORE["Pod"](
        metadata={"generateName": "web-", "managedFields": ["kubelet"]},
        spec={"volumes": ["v"], "tolerations": ["t"]},
    )
    data: bytes = declared + more.SerializeToString()
    return data


@pytest.mark.parametrize("form", ["JSON", "protobuf"])
def test_a_pod_of_an_api_server_reads_as_its_manifest_does(form: str) -> None:
    reported = (
        read_json(as_json(FROM_AN_API_SERVER)) if form == "JSON" else read_message(as_message())
    )
    pod = pod_of(reported, "here", pod_level=True)
    assert pod == load_pod(json.dumps(MANIFEST), "here")
    assert (reported.terminal, reported.deleting, reported.running) == (False, False, True)
    assert (reported.uid, reported.namespace) == (UID, "shop")


def test_pod_level_resources_are_absent_or_empty_as_the_kubelet_has_them() -> None:
    without = pod_of(read_message(pod_message(UID)), "here", pod_level=True)
    assert without.resources is None
    spec = {"containers": [container()], "resources": {}}
    message = CORE_V1["Pod"](metadata={"uid": UID, "name": "web"}, spec=spec).SerializeToString()
    given = read_message(message).specification
    assert isinstance(given, dict)
    assert given["spec"]["resources"] == {"requests": {}, "limits": {}}  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("phase", "has", "over"),
    [
        ("Pending", "", False),
        ("Running", "running", False),
        ("Running", "deleting running", False),
        ("Pending", "deleting", True),
        ("Failed", "", True),
        ("Succeeded", "", True),
    ],
)
@pytest.mark.parametrize("form", ["JSON", "protobuf"])
def test_a_pod_is_over_when_it_ended_or_is_deleted_and_runs_nothing(
    form: str,
    phase: str,
    has: str,
    over: bool,  # noqa: FBT001  # a column of the table
) -> None:
    deleting, running = "deleting" in has, "running" in has
    message = pod_message(UID, phase=phase, deleting=deleting, running=running)
    metadata: dict[str, Any] = {"uid": UID, "name": "web"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-22T20:00:00Z"
    state: dict[str, object] = {"running": {}} if running else {"waiting": {}}
    document = {
        "metadata": metadata,
        "status": {"phase": phase, "initContainerStatuses": [{"state": state}]},
    }
    reported = read_message(message) if form == "protobuf" else read_json(as_json(document))
    assert reported.over is over


def test_a_pod_with_mistakes_is_an_error_with_all_of_them_and_its_identity() -> None:
    reported = read_message(
        pod_message(UID, containers=(container("A", "cpu=2x"), container("b", "cpu=-1")))
    )
    with pytest.raises(ManifestError) as raised:
        pod_of(reported, "here", pod_level=True)
    assert raised.value.identity.name == "web"
    assert raised.value.identity.uid == UID
    assert "2x" in str(raised.value)


def test_one_unreadable_pod_of_a_list_does_not_affect_the_others() -> None:
    good, bad = pod_message(UID), b"\xff\xff"
    found = read_messages([bad, good])
    assert [pod.uid for pod in found.pods] == [UID]
    assert len(found.unreadable) == 1
    items = [{"metadata": {"uid": 7}}, FROM_AN_API_SERVER, {"metadata": {"uid": "../../x"}}]
    found = read_list(as_json({"items": items}), 9)
    assert [pod.uid for pod in found.pods] == [UID]
    assert [str(each)[:20] for each in found.unreadable] == [
        "it is not a pod (Exp",
        "its uid is not one o",
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "not a list of pods"),
        (b"Unauthorized", "not a list of pods"),
        (b'{"items": 3}', "not a list of pods"),
        (b'{"items": [{}, {}, {}]}', "3 pods, which are more than 2"),
        (b'{"items": ' + b"[" * 100_000, "not a list of pods"),
    ],
)
def test_an_answer_without_a_list_of_pods_is_one_error(answer: bytes, words: str) -> None:
    with pytest.raises(UnreadablePodError, match=words):
        read_list(answer, 2)


@pytest.mark.parametrize("answer", [b"{}", b'{"items": null}', b'{"items": []}'])
def test_an_answer_may_have_no_pods(answer: bytes) -> None:
    assert read_list(answer, 2).pods == ()


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_an_error_of_the_pod(data: bytes) -> None:
    for read in (read_message, read_json):
        try:
            pod_of(read(data), "here", pod_level=True)
        except (UnreadablePodError, ManifestError):
            continue


@given(st.data())
def test_no_damage_to_a_pod_raises_anything_but_an_error_of_the_pod(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from((as_message(), as_json(FROM_AN_API_SERVER)))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for read in (read_message, read_json):
        try:
            pod_of(read(bytes(whole)), "here", pod_level=True)
        except (UnreadablePodError, ManifestError):
            continue


def _listed(*items: str) -> bytes:
    return f'{{"items": [{", ".join(items)}]}}'.encode()


def _item(uid: str, managed: str = "{}") -> str:
    return (
        f'{{"metadata": {{"managedFields": {managed}, "uid": "{uid}", "name": "web"}}, '
        '"spec": {"containers": [{"name": "main"}]}}'
    )


@pytest.mark.parametrize(
    "managed",
    [
        "[" * 3000 + "]" * 3000,
        '{"a":' * 5000 + '"}"' + "}" * 5000,
        r'"\ud800"',
        r'"\udc00\\ud800\uD83D\uDE00"',
        '"\\"[{" ',
    ],
)
def test_a_value_that_no_decoder_takes_costs_no_pod_of_a_list(managed: str) -> None:
    listing = read_list(_listed(_item("a"), _item("b", managed), _item("c")), 10)
    assert [pod.uid for pod in listing.pods] == ["a", "b", "c"]
    assert len({str(pod.specification).replace(f"'{pod.uid}'", "") for pod in listing.pods}) == 1
    assert listing.unreadable == ()


@pytest.mark.parametrize("value", ["1e999", "9" * 5000])
def test_a_pod_with_a_number_that_is_too_large_is_known_by_its_uid(value: str) -> None:
    listing = read_list(_listed(_item("a"), _item("b", f'[{{"fieldsV1":{{"a":{value}}}}}]')), 10)
    assert [pod.uid for pod in listing.pods] == ["a"]
    assert [error.uid for error in listing.unreadable] == ["b"]


@pytest.mark.parametrize("damage", ["[" * 5000, '"\\' * 5000, '"\\"' * 5000, "]" * 5000, '"a'])
def test_what_is_not_a_list_is_an_error_whatever_is_in_it(damage: str) -> None:
    with pytest.raises(UnreadablePodError, match="not a list of pods"):
        read_list(_listed(_item("a", damage)), 10)


def test_a_pod_that_is_larger_than_any_costs_itself_and_is_known_by_its_uid() -> None:
    many = ", ".join(f'"a{number}": "{"b" * 30}"' for number in range(120_000))
    listing = read_list(_listed(_item("a"), _item("b", f"{{{many}}}")), 10)
    assert [pod.uid for pod in listing.pods] == ["a"]
    [error] = listing.unreadable
    assert error.uid == "b"
    assert "more than any pod" in str(error)
