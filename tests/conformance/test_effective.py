from __future__ import annotations

from typing import Any

from tests.conformance.effective import (
    asked_memory,
    asks_in_init_only,
    effective_memory,
    is_guaranteed,
    with_defaults,
)


def container(name: str, restart: str | None = None, **requests: str) -> dict[str, Any]:
    amounts = {key.replace("_", "-"): amount for key, amount in requests.items()}
    made: dict[str, Any] = {"name": name, "resources": {"requests": amounts, "limits": amounts}}
    return made | ({"restartPolicy": restart} if restart else {})


POD = {
    "spec": {
        "initContainers": [
            container("i", memory="5Ki", hugepages_2Mi="2Mi"),
            container("s", "Always", memory="1Ki"),
            container("j", memory="1Ki", hugepages_2Mi="4Mi"),
        ],
        "containers": [container("a", memory="2Ki"), container("b", memory="1Ki")],
    }
}


def test_the_most_of_any_moment_counts() -> None:
    assert effective_memory(POD) == {"memory": 5 << 10, "hugepages-2Mi": 4 << 20}


def test_types_of_init_containers_alone_are_found() -> None:
    assert asks_in_init_only(POD) == {"hugepages-2Mi"}
    assert asks_in_init_only({"spec": {"containers": POD["spec"]["containers"]}}) == set()


def test_beside_a_budget_only_guaranteed_containers_ask_for_memory() -> None:
    unbounded = container("a", memory="1Ki")
    assert not is_guaranteed(unbounded)
    assert asked_memory(unbounded) == {"memory": 1 << 10}
    assert asked_memory(unbounded, of_budget=True) == {}
    assert is_guaranteed(container("a", cpu="1", memory="1Ki"))
    unequal = container("a", cpu="1", memory="1Ki")
    unequal["resources"]["limits"] = {"cpu": "2", "memory": "1Ki"}
    assert not is_guaranteed(unequal)


def test_limits_stand_for_requests_only_where_the_api_server_says_so() -> None:
    limited = {"name": "a", "resources": {"limits": {"memory": "1Ki"}}}
    pod = {"spec": {"containers": [limited]}}
    assert effective_memory(pod) == {}
    assert effective_memory(with_defaults(pod)) == {"memory": 1 << 10}
