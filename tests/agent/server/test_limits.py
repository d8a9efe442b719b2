from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.server.limits import (
    Caller,
    FullError,
    Limit,
    Limits,
    NoRoomError,
    demand_room,
    displaced,
    place,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE, TWO, THREE = Caller("user 1"), Caller("user 2"), Caller("user 3")
ROOT = Caller("user 0", privileged=True)
CALLERS = st.sampled_from((ONE, TWO, THREE, ROOT))


@dataclass(eq=False)
class FakeConnection:
    caller: Caller
    answering: bool = False
    watching: bool = False
    body_size: int = 0
    unread: int = 0

    def cut(self, last: bytes = b"") -> None:
        """No limit is exceeded by a connection that is kept."""


def limits(
    requests: tuple[int, int] = (0, 0),
    watchers: tuple[int, int] = (0, 0),
    bodies: tuple[int, int] = (0, 0),
    answers: tuple[int, int] = (0, 0),
) -> Limits:
    """Return limits of everyone and of a caller."""
    return Limits(Limit(*requests), Limit(*watchers), Limit(*bodies), Limit(*answers), 1.0, 1.0)


def idle(*callers: Caller) -> list[FakeConnection]:
    return [FakeConnection(caller) for caller in callers]


def of(present: Sequence[FakeConnection], caller: Caller) -> list[FakeConnection]:
    return [connection for connection in present if connection.caller == caller]


def test_at_the_cap_of_a_caller_its_longest_idle_connection_is_closed_and_at_that_of_all_any() -> (
    None
):
    present = idle(TWO, ONE, ONE)
    assert place(FakeConnection(ONE), present, limits(requests=(10, 2))) is present[1]
    assert place(FakeConnection(ONE), present, limits(requests=(10, 3))) is None
    assert place(FakeConnection(TWO), present, limits(requests=(10, 2))) is None
    assert place(FakeConnection(THREE), present, limits(requests=(3, 2))) is present[0]


def test_a_connection_that_waits_for_an_answer_is_not_closed() -> None:
    present = idle(TWO, ONE, ONE)
    present[1].answering = True
    assert place(FakeConnection(ONE), present, limits(requests=(10, 2))) is present[2]
    present[2].answering = True
    with pytest.raises(FullError, match="user 1: 2 wait for responses already") as caught:
        place(FakeConnection(ONE), present, limits(requests=(10, 2)))
    assert (caught.value.caller, caught.value.count) == (ONE, 2)
    assert place(FakeConnection(THREE), present, limits(requests=(3, 2))) is present[0]
    present[0].answering = True
    with pytest.raises(FullError, match="user 3: 3 wait for responses already"):
        place(FakeConnection(THREE), present, limits(requests=(3, 2)))


def test_root_is_neither_counted_nor_capped_nor_closed() -> None:
    full, present = limits(requests=(2, 2)), idle(*[ROOT] * 9, ONE, TWO)
    assert place(FakeConnection(ROOT), present, full) is None
    assert place(FakeConnection(THREE), present, full) is present[9]
    assert place(FakeConnection(TWO), present[:10], full) is None


def test_watchers_are_counted_apart_and_closed_in_the_order_of_their_last_event() -> None:
    bounds = limits(requests=(2, 2), watchers=(2, 2))
    asking = idle(ONE, ONE)
    watching = [FakeConnection(ONE, answering=True, watching=True) for _ in range(3)]
    assert place(FakeConnection(ONE), watching, bounds) is None
    assert place(watching[2], [*asking, watching[0], watching[2]], bounds) is None
    assert place(watching[2], [*asking, *watching], bounds) is watching[0]


@given(st.lists(st.tuples(CALLERS, st.booleans()), max_size=60))
def test_no_cap_of_connections_is_exceeded_and_a_caller_at_its_own_displaces_none_of_others(
    arrivals: list[tuple[Caller, bool]],
) -> None:
    everyone, each = 5, 3
    present: list[FakeConnection] = []
    for caller, answering in arrivals:
        newcomer = FakeConnection(caller, answering)
        at_its_cap = len(of(present, caller)) == each
        try:
            leaving = place(newcomer, present, limits(requests=(everyone, each)))
        except FullError:
            scope = of(present, caller) if at_its_cap else present
            assert all(other.answering for other in scope if not other.caller.privileged)
            continue
        if leaving is not None:
            assert not leaving.answering
            assert not caller.privileged
            assert leaving.caller == caller or not at_its_cap
            present.remove(leaving)
        present.append(newcomer)
        capped = [connection for connection in present if not connection.caller.privileged]
        assert len(capped) <= everyone
        assert all(len(of(capped, user)) <= each for user in (ONE, TWO, THREE))


def test_bodies_of_a_caller_have_a_cap_and_those_of_all() -> None:
    bounds = limits(bodies=(50, 40))
    present = [FakeConnection(ONE, body_size=30)]
    with pytest.raises(NoRoomError, match=r"for 11 bytes of user 1: .* use 30 already"):
        demand_room(present[0], 11, present, bounds)
    demand_room(present[0], 10, present, bounds)
    demand_room(FakeConnection(TWO), 20, present, bounds)
    with pytest.raises(NoRoomError, match=r"for 21 bytes of user 2: .* use 30 already"):
        demand_room(FakeConnection(TWO), 21, present, bounds)


def test_bodies_of_root_are_neither_counted_nor_capped() -> None:
    bounds = limits(bodies=(50, 40))
    present = [FakeConnection(ROOT, body_size=1000)]
    demand_room(FakeConnection(ROOT), 1000, present, bounds)
    demand_room(FakeConnection(ONE), 40, present, bounds)
    with pytest.raises(NoRoomError) as caught:
        demand_room(FakeConnection(ONE), 41, present, bounds)
    assert (caught.value.status, caught.value.headers) == (503, (("Retry-After", "1"),))


def test_answers_that_are_read_for_longest_without_progress_make_room() -> None:
    present = [FakeConnection(user, unread=15) for user in (TWO, ONE, ONE)]
    newcomer = FakeConnection(ONE)
    assert displaced(newcomer, 10, [*present, newcomer], limits(answers=(100, 40))) == []
    assert displaced(newcomer, 11, [*present, newcomer], limits(answers=(100, 40))) == [present[1]]
    assert displaced(newcomer, 40, [*present, newcomer], limits(answers=(100, 40))) == present[1:]
    assert displaced(newcomer, 11, [*present, newcomer], limits(answers=(55, 50))) == [present[0]]
    present[0] = FakeConnection(ONE)  # which makes no room
    assert displaced(newcomer, 11, present, limits(answers=(40, 40))) == [present[1]]


def test_answers_of_root_are_neither_counted_nor_capped_nor_cut_off() -> None:
    bounds = limits(answers=(50, 40))
    present = [FakeConnection(ROOT, unread=1000), FakeConnection(ONE, unread=40)]
    assert displaced(FakeConnection(ROOT), 1000, present, bounds) == []
    assert displaced(FakeConnection(TWO), 40, present, bounds) == [present[1]]


def test_an_answer_above_the_cap_is_sent_alone() -> None:
    present = [FakeConnection(ONE, unread=10), FakeConnection(TWO, unread=20)]
    bounds = limits(answers=(50, 40))
    assert displaced(FakeConnection(ONE), 1000, present, bounds) == present
    assert displaced(FakeConnection(ONE), 1000, [], bounds) == []


@given(st.lists(st.tuples(CALLERS, st.integers(1, 80)), max_size=60))
def test_no_cap_of_answers_is_exceeded_by_answers_below_it(
    arrivals: list[tuple[Caller, int]],
) -> None:
    everyone, each = 100, 80
    present: list[FakeConnection] = []
    for caller, size in arrivals:
        newcomer = FakeConnection(caller)
        for leaving in displaced(newcomer, size, present, limits(answers=(everyone, each))):
            assert not leaving.caller.privileged
            present.remove(leaving)
        newcomer.unread = size
        present.append(newcomer)
        capped = [connection for connection in present if not connection.caller.privileged]
        assert sum(connection.unread for connection in capped) <= everyone
        for user in (ONE, TWO, THREE):
            assert sum(connection.unread for connection in of(capped, user)) <= each
