from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.server.limits import Caller, FullError, Limit, Places

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
