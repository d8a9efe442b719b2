"""The pod of a systemd unit, as a manifest."""

from __future__ import annotations

import json

from agent.tools.run import pod_of_unit


def test_nothing_of_a_unit_is_limited_but_its_huge_pages() -> None:
    pod = json.loads(pod_of_unit("app@1.service", "2", "1Gi", ["2Mi=4Mi"]))
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
        "limits": {"hugepages-2Mi": "4Mi"},
    }
    assert pod["metadata"]["name"] == "app-1.service"
