from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.server.limits import Caller, FullError, Limit, NoRoomError, Places, Room

ONE, TWO, THREE = Caller("user 1"), Caller("user 2"), Caller("user 3")
ROOT = Caller("user 0", privileged=True)


@dataclass(eq=False)
class FakeConnection:
    caller: Caller
    answering: bool = False


def places(everyone: int, caller: int, *, cut_answers: bool = False) -> Places[FakeConnection]:
    return Places(Limit(everyone, caller), cut_answers=cut_answers)


def entered(room: Places[FakeConnection], *callers: Caller) -> list[FakeConnection]:
    fakes = [FakeConnection(caller) for caller in callers]
    assert [room.enter(fake) for fake in fakes] == [None] * len(fakes)
    return fakes


def test_the_longest_idle_of_the_same_caller_gives_way() -> None:
    room = places(10, 2)
    first, second, other = entered(room, ONE, ONE, TWO)
    room.touch(first)
    assert room.enter(FakeConnection(ONE)) is second
    assert set(room) >= {first, other}
    assert len(room) == 3


def test_the_caller_with_the_most_gives_way_when_all_places_are_taken() -> None:
    room = places(3, 2)
    _, first, _ = entered(room, TWO, ONE, ONE)
    assert room.enter(FakeConnection(THREE)) is first


def test_who_waits_for_an_answer_does_not_give_way_to_its_own_caller() -> None:
    room = places(10, 2)
    busy, idle = entered(room, ONE, ONE)
    busy.answering = True
    assert room.enter(FakeConnection(ONE)) is idle
    for connection in room:
        connection.answering = True
    with pytest.raises(FullError) as caught:
        room.enter(FakeConnection(ONE))
    assert (caught.value.caller, caught.value.count) == (ONE, 2)
    assert len(room) == 2


def test_who_waits_for_an_answer_gives_way_where_answers_are_cheap() -> None:
    room = places(10, 2, cut_answers=True)
    first, second = entered(room, ONE, ONE)
    first.answering = second.answering = True
    assert room.enter(FakeConnection(ONE)) is first


def test_who_holds_more_than_its_share_gives_way_to_others_whatever_it_waits_for() -> None:
    room = places(4, 4)
    connected = entered(room, ONE, ONE, ONE, ONE)
    for connection in connected:
        connection.answering = True
    assert room.enter(FakeConnection(TWO, answering=True)) is connected[0]
    assert room.enter(FakeConnection(TWO, answering=True)) is connected[1]
    with pytest.raises(FullError):  # two each: no caller has more than its share
        room.enter(FakeConnection(TWO))


def test_privileged_callers_take_no_place_of_others_and_lose_none_to_them() -> None:
    room = places(2, 2)
    entered(room, ROOT, ROOT, ONE, TWO)
    assert len(room) == 4
    for _ in range(5):
        leaving = room.enter(FakeConnection(THREE))
        assert leaving is not None
        assert not leaving.caller.privileged
    leaving = room.enter(FakeConnection(ROOT))
    assert leaving is not None
    assert leaving.caller is ROOT


def test_a_place_is_given_back_once() -> None:
    room = places(1, 1)
    (connection,) = entered(room, ONE)
    room.leave(connection)
    room.leave(connection)
    room.touch(connection)
    assert len(room) == 0
    entered(room, TWO)


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE, ROOT]), st.booleans()), max_size=60))
def test_bounds_hold_and_a_caller_without_a_place_always_gets_one(
    arrivals: list[tuple[Caller, bool]],
) -> None:
    everyone, each = 5, 3
    room = places(everyone, each)
    for caller, answering in arrivals:
        present = list(room)
        newcomer = FakeConnection(caller, answering)
        try:
            leaving = room.enter(newcomer)
        except FullError:
            assert any(connection.caller == caller for connection in present)
            assert list(room) == present
        else:
            assert set(room) == {*present, newcomer} - {leaving}
        common = [connection.caller for connection in room if not connection.caller.privileged]
        assert len(common) <= everyone
        assert all(common.count(caller) <= each for caller in common)


ONE, TWO, THREE = Caller("user 1"), Caller("user 2"), Caller("user 3")


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
