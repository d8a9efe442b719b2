from __future__ import annotations

import pytest

from agent.managers.cpu_options import AlignBySocketError, require_host_fits
from agent.managers.policy import CpuPolicyOptions
from tests.agent.managers.cpu_hosts import TWO_SOCKETS, Shape

ALIGN = CpuPolicyOptions(align_by_socket=True)


def test_align_by_socket_is_refused_where_a_node_spans_sockets() -> None:
    spanning = Shape(sockets=2, nodes=-2).topology()

    with pytest.raises(AlignBySocketError, match="2 sockets and only 1 NUMA node") as caught:
        require_host_fits(spanning, ALIGN)

    assert (caught.value.sockets, caught.value.nodes) == (2, 1)
    require_host_fits(spanning, CpuPolicyOptions())


def test_align_by_socket_needs_as_many_nodes_as_sockets() -> None:
    require_host_fits(TWO_SOCKETS, ALIGN)
