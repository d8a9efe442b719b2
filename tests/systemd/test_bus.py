from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sysfs.mask import Mask
from systemd.bus import ActiveState, SystemBus
from systemd.units import (
    BusError,
    BusSilentError,
    BusTimeoutError,
    BusUnavailableError,
    JobFailedError,
    NoSuchUnitError,
    ProtocolError,
    UnitExistsError,
    UnitNameError,
    allowed_cpus,
    description,
)
from tests.fakes.dbus import Answer, FakeBus, Handler, Rejection, Signal, Silence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., tuple[FakeBus, SystemBus]]

#: In seconds; an answer takes no longer on however busy a machine.
PATIENCE = 60.0
UNIT = "kubepods-pod1.slice"
JOB = "/org/freedesktop/systemd1/job/7"
MANAGER = "org.freedesktop.systemd1.Manager"


def job_removed(unit: str = UNIT, result: str = "done", job: str = JOB) -> Signal:
    path = "/org/freedesktop/systemd1"
    return Signal(path, MANAGER, "JobRemoved", "uoss", (7, job, unit, result))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    opened: list[tuple[FakeBus, SystemBus]] = []

    def start(
        handler: Handler, *, timeout: float = PATIENCE, greets: bool = True
    ) -> tuple[FakeBus, SystemBus]:
        fake = FakeBus(tmp_path, handler, greets=greets)
        fake.__enter__()
        opened.append((fake, SystemBus(fake.address, timeout=timeout)))
        return opened[-1]

    yield start
    for fake, bus in opened:
        bus.close()
        fake.__exit__()


def unit_at(**properties: tuple[str, object]) -> Handler:
    """Answer as a manager that has one unit with these properties (signature, value)."""

    def handler(member: str, _path: str, body: tuple[object, ...]) -> Answer:
        if member == "GetUnit":
            return Answer("o", ("/org/freedesktop/systemd1/unit/x",))
        if member == "Get":
            return Answer("v", (properties[str(body[1])],))
        return Answer()

    return handler


@pytest.mark.parametrize("early", [True, False])
def test_a_transient_slice_is_started_and_its_job_awaited(start: Start, early: bool) -> None:  # noqa: FBT001
    other = job_removed(job="/other")

    def handler(*_: object) -> Answer:
        signals = [other, job_removed()]
        return Answer("o", (JOB,), signals if early else [], [] if early else signals)

    fake, bus = start(handler)
    bus.start_transient(UNIT, (description("a pod"), allowed_cpus(Mask.parse("0,9"))))
    call = next(body for member, _, body in fake.calls if member == "StartTransientUnit")
    assert call[:2] == (UNIT, "fail")
    assert call[2] == [("Description", ("s", "a pod")), ("AllowedCPUs", ("ay", b"\x01\x02"))]
    matches = [body[0] for member, _, body in fake.calls if member in ("AddMatch", "RemoveMatch")]
    assert len(matches) == 2
    assert all(f"arg2='{UNIT}'" in str(rule) for rule in matches)


def test_a_failed_job_is_an_error_with_its_result(start: Start) -> None:
    _, bus = start(lambda *_: Answer("o", (JOB,), after=[job_removed(result="dependency")]))
    with pytest.raises(JobFailedError, match=r"could not stop kubepods-pod1.slice.*'dependency'"):
        bus.stop(UNIT)


def test_a_job_that_does_not_end_is_a_timeout(start: Start) -> None:
    _, bus = start(lambda *_: Answer("o", (JOB,)), timeout=0.2)
    with pytest.raises(BusTimeoutError, match=r"the start of kubepods-pod1.slice within 0.2 s"):
        bus.start_transient(UNIT, ())


def test_no_answer_is_a_timeout_and_the_next_call_is_answered(start: Start) -> None:
    silent = [True]

    def handler(member: str, path: str, body: tuple[object, ...]) -> Answer:
        if silent.pop() if silent else False:
            raise Silence
        return unit_at(ActiveState=("s", "active"))(member, path, body)

    _, bus = start(handler, timeout=0.2)
    with pytest.raises(BusTimeoutError, match="GetUnit"):
        bus.active_state(UNIT)
    bus._timeout = PATIENCE
    assert bus.active_state(UNIT) is ActiveState.ACTIVE


@pytest.mark.parametrize("member", ["Hello", "Subscribe", "AddMatch", "StartTransientUnit"])
def test_a_step_that_is_silent_once_costs_one_deadline_and_no_later_call(
    start: Start, member: str
) -> None:
    fake, bus = start(lambda *_: Answer("o", (JOB,), after=[job_removed()]), timeout=1.0)
    fake.silent_once = {member}
    with pytest.raises((BusTimeoutError, BusSilentError)):
        bus.start_transient(UNIT, ())
    asked = [name for name, _, _ in fake.calls]
    assert asked[-1] == member
    bus._timeout = PATIENCE
    bus.start_transient(UNIT, ())
    # Without a subscriber systemd sends no JobRemoved, so each connection has to subscribe.
    assert [name for name, _, _ in fake.calls].count("Subscribe") == asked.count("Subscribe") + 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org.freedesktop.systemd1.NoSuchUnit", NoSuchUnitError),
        ("org.freedesktop.systemd1.UnitExists", UnitExistsError),
        ("org.freedesktop.DBus.Error.AccessDenied", BusError),
    ],
)
def test_an_error_keeps_its_name(start: Start, name: str, expected: type[BusError]) -> None:
    def handler(*_: object) -> Answer:
        raise Rejection(name, "because")

    _, bus = start(handler)
    with pytest.raises(expected, match="because") as caught:
        bus.set_properties(UNIT, ())
    assert caught.value.name == name
    assert type(caught.value) is expected


@pytest.mark.parametrize("state", ["inactive", "dreaming"])
def test_a_unit_that_is_not_loaded_is_inactive_and_an_unknown_state_an_error(
    start: Start, state: str
) -> None:
    known = unit_at(ActiveState=("s", state))

    def handler(member: str, path: str, body: tuple[object, ...]) -> Answer:
        if state == "inactive":
            raise Rejection("org.freedesktop.systemd1.NoSuchUnit")
        return known(member, path, body)

    _, bus = start(handler)
    if state == "inactive":
        assert bus.active_state(UNIT) is ActiveState.INACTIVE
        assert not ActiveState.INACTIVE.running
    else:
        with pytest.raises(ProtocolError, match="dreaming"):
            bus.active_state(UNIT)


def test_state_and_cgroup_are_read(start: Start) -> None:
    _, bus = start(
        unit_at(
            ActiveState=("s", "active"),
            ControlGroup=("s", "/kubepods.slice/kubepods-pod1.slice"),
            AllowedCPUs=("ay", b"\x03"),
        )
    )
    assert bus.active_state(UNIT).running
    assert bus.control_group(UNIT) == "kubepods.slice/kubepods-pod1.slice"
    assert bus.unit_properties(UNIT, "AllowedCPUs")[0] == b"\x03"


def units(member: str, path: str, body: tuple[object, ...]) -> Answer:
    """Answer as a manager that has each unit but `gone.slice`; a property's value is its name."""
    if body[0] == "gone.slice":
        raise Rejection("org.freedesktop.systemd1.NoSuchUnit", "not loaded")
    if member == "GetUnit":
        return Answer("o", (f"/unit/{str(body[0]).partition('.')[0]}",))
    if member == "Get":
        return Answer("v", (("s", f"{body[1]} of {path}"),))
    return Answer()


def test_several_units_are_asked_about_with_two_waits_and_each_has_its_own_answer(
    start: Start,
) -> None:
    fake, bus = start(units)
    asked = [("a.slice", ("X", "Y")), ("gone.slice", ("X",)), ("b.scope", ("X",)), ("no", ("X",))]
    first, gone, second, unusable = bus.properties_of(asked)
    assert (first, second) == (("X of /unit/a", "Y of /unit/a"), ("X of /unit/b",))
    assert isinstance(gone, NoSuchUnitError)
    assert isinstance(unusable, UnitNameError)
    members = [member for member, _, _ in fake.calls if member in ("GetUnit", "Get")]
    assert members == ["GetUnit"] * 3 + ["Get"] * 3
    assert bus.properties_of(()) == []
    more = bus.properties_of([(f"u{number}.slice", ("X",)) for number in range(150)])
    assert more == [(f"X of /unit/u{number}",) for number in range(150)]  # more than at once


def test_properties_of_several_units_are_set_and_an_error_is_its_units(start: Start) -> None:
    fake, bus = start(units)
    cpus = (allowed_cpus(Mask.parse("0")),)
    desired = [("a.slice", cpus), ("gone.slice", cpus), ("no", cpus), ("b.slice", cpus)]
    errors = bus.set_properties_of(desired)
    assert [type(error) for error in errors] == [
        type(None),
        NoSuchUnitError,
        UnitNameError,
        type(None),
    ]
    done = [body for member, _, body in fake.calls if member == "SetUnitProperties"]
    assert [body[:2] for body in done] == [
        (unit, True) for unit in ("a.slice", "gone.slice", "b.slice")
    ]


def test_a_broken_connection_is_reported_and_made_again(start: Start) -> None:
    fake, bus = start(unit_at(ActiveState=("s", "active")))
    assert bus.active_state(UNIT).running
    fake.drop_client()
    with pytest.raises(BusUnavailableError):
        bus.active_state(UNIT)
    assert bus.active_state(UNIT).running


def test_a_bus_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    bus = SystemBus(f"unix:path={tmp_path}/none")
    with pytest.raises(BusUnavailableError, match="set cgroupDriver: cgroupfs"):
        bus.active_state(UNIT)


def test_a_bus_that_does_not_greet_is_given_up(start: Start) -> None:
    _, bus = start(lambda *_: Answer(), timeout=0.2, greets=False)
    with pytest.raises(BusUnavailableError, match=r"no greeting within 0.2 s"):
        bus.active_state(UNIT)


@pytest.mark.parametrize("name", ["", "pod", "a/b.slice", ".slice", "x.unknown"])
def test_a_bad_name_never_reaches_the_bus(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnitNameError):
        SystemBus(f"unix:path={tmp_path}/none").start_transient(name, ())
