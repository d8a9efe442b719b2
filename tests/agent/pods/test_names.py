from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.pods.model import (
    extended_resource_fault,
    label_fault,
    prefixed_resource_fault,
    subdomain_fault,
    uid_fault,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: A domain so long that "requests." before it still makes a name (253 characters).
LONGEST = "a." * 121 + "aa"


@pytest.mark.parametrize(
    ("fault", "names", "others"),
    [
        (
            label_fault,
            ["a", "0", "a-b", "a" * 63],
            ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "é"],
        ),
        (
            subdomain_fault,
            ["a.b-c.d", "a" * 253],
            ["", "a..b", ".a", "a.", "a.-b", "a" * 254, "A.b"],
        ),
        (
            uid_fault,
            ["7b0c6f9e-2f0a-4a9c-8d5e-0e8f4b6a1c2d", "a", "A.b", "0" * 128],
            ["", "..", "a..b", "a/b", "-a", "a.", "a_b", "a b", "0" * 129, "a\n"],
        ),
        (
            extended_resource_fault,
            ["example.com/gpu", "a/B_c.d", "x.kubernetes.iox/y", f"{LONGEST}/x"],
            [
                *("gpu", "/gpu", "a/", "a/b/c", "kubernetes.io/x", "y.kubernetes.io/x", "A/b"),
                *("xkubernetes.io/y", "requests.a.b/x", "requests.kubernetes.io/x"),
                f"{LONGEST}a/x",
            ],
        ),
        (
            prefixed_resource_fault,
            [
                "kubernetes.io/x",
                "y.kubernetes.io/X_1",
                "xkubernetes.io/y",
                "requests.kubernetes.io/x",
            ],
            ["kubernetes.io/", "kubernetes.io/x/y", "Y.kubernetes.io/x"],
        ),
    ],
)
def test_names_have_no_fault_and_other_texts_have_one(
    fault: Callable[[str], str | None], names: list[str], others: list[str]
) -> None:
    assert [text for text in names if fault(text) is not None] == []
    assert [text for text in others if fault(text) is None] == []
