from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.enforcement.quota import container_cpu_max, cpu_max, pod_cpu_max
from agent.ledger import CpuLimits
from cgroupfs.values import UNLIMITED, CpuMax
from tests.agent.enforcement.pods import exclusive, on_host, pod, pod_shared


@pytest.mark.parametrize(
    ("millis", "shown"),
    [
        (1, "1000 100000"),
        (9, "1000 100000"),
        (10, "1000 100000"),
        (11, "1100 100000"),
        (500, "50000 100000"),
        (1000, "100000 100000"),
        (2505, "250500 100000"),
        (128_000, "12800000 100000"),
        (0, "max 100000"),
        (1 << 70, "max 100000"),
    ],
)
def test_a_limit_becomes_the_kubelets_quota(millis: int, shown: str) -> None:
    assert str(cpu_max(millis)) == shown


@settings(deadline=None)
@given(st.integers(10, 10_000_000))
def test_a_quota_is_a_hundred_microseconds_for_each_millicore(millis: int) -> None:
    assert cpu_max(millis) == CpuMax(millis * 100, 100_000)


def test_exclusive_cpus_have_no_quota() -> None:
    container = exclusive("db", "2-5")
    assert container_cpu_max(pod(container, limit=4000), container) == UNLIMITED


def test_with_the_gate_off_exclusive_cpus_keep_their_quota() -> None:
    container = exclusive("db", "2-5", quota=True)
    grant = pod(container, limit=4000)
    assert container_cpu_max(grant, container) == CpuMax(400_000)
    assert pod_cpu_max(grant) == CpuMax(400_000)


def test_a_pod_shared_container_has_its_own_limit_or_else_the_pods() -> None:
    limited, unlimited = pod_shared("a", "6-7", limit=500), pod_shared("b", "6-7")
    grant = pod(limited, unlimited, cpus="2-7", limit=6000)
    assert container_cpu_max(grant, limited) == CpuMax(50_000)
    assert container_cpu_max(grant, unlimited) == CpuMax(600_000)


def test_a_host_container_has_its_own_limit_or_else_the_pods() -> None:
    limited, unlimited = on_host("a", limit=250), on_host("b")
    grant = pod(limited, unlimited, limit=2000)
    assert container_cpu_max(grant, limited) == CpuMax(25_000)
    assert container_cpu_max(grant, unlimited) == CpuMax(200_000)


def test_a_host_container_without_any_limit_keeps_what_its_runtime_set() -> None:
    container = on_host("a")
    assert container_cpu_max(pod(container), container) is None


def test_a_pod_without_exclusive_members_has_its_limit() -> None:
    assert pod_cpu_max(pod(on_host("a"), limit=1500)) == CpuMax(150_000)
    assert pod_cpu_max(pod(pod_shared("a", "2-3"), cpus="2-3", limit=2000)) == CpuMax(200_000)
    assert pod_cpu_max(pod(on_host("a"))) == UNLIMITED


def test_one_exclusive_member_lifts_the_pods_quota() -> None:
    grant = pod(exclusive("a", "2-3"), pod_shared("b", "4-5"), cpus="2-5", limit=4000)
    assert pod_cpu_max(grant) == UNLIMITED


@settings(deadline=None)
@given(st.integers(1, 10**7), st.booleans())
def test_no_ancestor_ever_throttles_exclusive_cpus(limit: int, pod_level: bool) -> None:  # noqa: FBT001 - drawn
    grant = pod(
        exclusive("a", "2-3"), on_host("b", limit=limit), cpus="2-5" if pod_level else None,
        limit=limit,
    )  # fmt: skip
    assert (pod_cpu_max(grant) or UNLIMITED).allows(
        container_cpu_max(grant, grant.containers[0]) or UNLIMITED
    )


def test_the_quota_of_an_imported_pod_is_left_alone_until_its_limit_is_known() -> None:
    imported = replace(pod(on_host("a")), spec_digest="")
    assert pod_cpu_max(imported) is None
    assert pod_cpu_max(replace(imported, cpu=CpuLimits(1500, 1500))) == CpuMax(150_000)
