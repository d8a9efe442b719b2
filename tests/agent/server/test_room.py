from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.server.limits import Caller, Limit, NoRoomError, Room

ONE, TWO, THREE = Caller("user 1"), Caller("user 2"), Caller("user 3")
ROOT = Caller("user 0", privileged=True)


@dataclass(eq=False)
class FakeConnection:
    caller: Caller
    answering: bool = False


def taken(room: Room[FakeConnection], caller: Caller, size: int) -> FakeConnection:
    connection = FakeConnection(caller)
    room.take(connection, size)
    return connection


def test_a_caller_takes_no_more_than_its_share() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=100, caller=40))
    taken(room, ONE, 30)
    with pytest.raises(NoRoomError, match="no room for 11 bytes: unfinished requests use 30"):
        taken(room, ONE, 11)
    taken(room, ONE, 10)
    taken(room, TWO, 40)
    assert (room.used(ONE), room.used(TWO), room.used()) == (40, 40, 80)


def test_all_callers_together_take_no_more_than_there_is_and_root_gets_in() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=50, caller=40))
    taken(room, ONE, 40)
    with pytest.raises(NoRoomError):
        taken(room, TWO, 11)
    taken(room, ROOT, 50)
    with pytest.raises(NoRoomError):
        taken(room, ROOT, 1)
    taken(room, TWO, 10)  # the common room has nothing of root in it


def test_what_does_not_fit_says_when_to_ask_again() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=1, caller=1))
    with pytest.raises(NoRoomError) as caught:
        taken(room, ONE, 2)
    assert (caught.value.status, caught.value.headers) == (503, (("Retry-After", "1"),))


def test_all_that_a_connection_took_is_given_back() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=10, caller=10))
    connection = FakeConnection(ONE)
    with room.space(connection):
        room.take(connection, 4)
        room.take(connection, 6)
        assert room.used() == 10
    assert (room.used(), room.used(ONE)) == (0, 0)


def test_who_makes_no_progress_for_longest_gives_way_to_its_own_caller() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=100, caller=30))
    first, second, other = taken(room, ONE, 15), taken(room, ONE, 15), taken(room, TWO, 30)
    room.progressed(first)
    newcomer = FakeConnection(ONE)
    assert room.claim(newcomer, 10) == [second]
    assert room.claim(FakeConnection(ONE), 30) == [first, newcomer]
    assert (room.used(ONE), room.used(TWO)) == (30, 30)
    room.progressed(other)
    room.progressed(second)  # which holds nothing
    assert room.used(ONE) == 30


def test_the_caller_with_the_most_gives_way_when_all_room_is_taken() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=50, caller=40))
    taken(room, ONE, 10)
    largest = taken(room, TWO, 40)
    root = taken(room, ROOT, 50)
    assert room.claim(FakeConnection(THREE), 5) == [largest]
    assert room.claim(FakeConnection(ROOT), 5) == [root]


def test_what_is_larger_than_all_room_is_alone_in_it() -> None:
    room: Room[FakeConnection] = Room(Limit(everyone=50, caller=40))
    small = taken(room, ONE, 10)
    assert room.claim(FakeConnection(ONE), 1000) == [small]
    assert room.used() == 1000


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("take", "claim", "leave", "progressed")),
            st.integers(0, 7),
            st.integers(0, 60),
        ),
        max_size=60,
    )
)
def test_no_bound_is_exceeded_whatever_comes_and_goes(steps: list[tuple[str, int, int]]) -> None:
    limit = Limit(everyone=100, caller=60)
    room: Room[FakeConnection] = Room(limit)
    connections = [FakeConnection((ONE, TWO, THREE, ROOT)[number % 4]) for number in range(8)]
    naive: dict[FakeConnection, int] = {}
    for kind, number, size in steps:
        connection = connections[number]
        if kind == "take":
            try:
                room.take(connection, size)
            except NoRoomError:
                continue
            naive[connection] = naive.get(connection, 0) + size
        elif kind == "claim" and connection not in naive:
            for leaving in room.claim(connection, size):
                del naive[leaving]
            naive[connection] = size
        elif kind == "leave":
            with room.space(connection):
                naive.pop(connection, None)
        else:
            room.progressed(connection)
        for caller in (ONE, TWO, THREE, ROOT):
            own = sum(size for connection, size in naive.items() if connection.caller == caller)
            assert room.used(caller) == own
            assert own <= (limit.everyone if caller.privileged else limit.caller)
        assert room.used() == sum(
            s for connection, s in naive.items() if not connection.caller.privileged
        )
        assert room.used() <= limit.everyone
