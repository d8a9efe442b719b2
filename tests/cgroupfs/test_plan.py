from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from cgroupfs.plan import Plan, Setting, Unfit, Write, WriteStage, make_plan
from cgroupfs.settings import EXCLUSIVE, MEMBER, PARTITION
from cgroupfs.state import CgroupState
from sysfs.mask import EMPTY, Mask
from tests.fakes.kernel import quota

ALL = Mask.parse("0-7")
NODES = Mask.parse("0-1")
FRESH = CgroupState(EMPTY, ALL, EMPTY, NODES, populated=False, values=quota())


def cpus(text: str, effective: str | None = None) -> CgroupState:
    return replace(FRESH, cpus=Mask.parse(text), cpus_effective=Mask.parse(effective or text))


def lines(plan: Plan) -> list[tuple[str, str, str]]:
    return [(write.stage.name, write.cgroup, write.value) for write in plan.writes]


#: What each cgroup has, what it is to have (`!` exclusively), and the writes in their order.
ORDERS: Final = {
    "shared containers shrink before a pod and its container are confined": (
        {"a": "0-7", "a/shared": "0-7", "b": "", "b/one": ""},
        {"b": "2-3!", "b/one": "2-3!", "a": "0-7", "a/shared": "0-1,4-7"},
        "SHRINK a/shared 0-1,4-7; CONFINE b/one 2-3; CONFINE b 2-3",
    ),
    "a released set goes back from the pod down": (
        {"a": "0-1", "a/shared": "0-1"},
        {"a/shared": "0-7", "a": "0-7"},
        "GIVE a 0-7; GIVE a/shared 0-7",
    ),
    "a pod that moves is wider for as long as its container needs": (
        {"a": "0-1", "a/app": "0-1"},
        {"a": "4-5", "a/app": "4-5"},
        "GIVE a 0-1,4-5; GIVE a/app 4-5; SETTLE a 4-5",
    ),
    "sets that change places are written once each": (
        {"a": "0", "b": "1"},
        {"a": "1", "b": "0"},
        "GIVE a 1; GIVE b 0",
    ),
    "who moves away goes before who comes": (
        {"a": "0", "b": "1"},
        {"a": "1", "b": "2"},
        "GIVE b 2; GIVE a 1",
    ),
}


@pytest.mark.parametrize("case", ORDERS)
def test_sets_are_written_in_the_order_in_which_no_cpu_is_used_twice(case: str) -> None:
    has, desired, written = ORDERS[case]
    current = {path: cpus(text) if text else FRESH for path, text in has.items()}
    settings = [
        Setting(path, cpus=Mask.parse(text.rstrip("!")), exclusive=text.endswith("!"))
        for path, text in desired.items()
    ]
    assert "; ".join(map(" ".join, lines(make_plan(current, settings)))) == written


def test_an_offline_cpu_in_a_set_that_stays_is_not_rewritten() -> None:
    current = {"a": cpus("0-3", effective="0-2")}
    assert make_plan(current, (Setting("a", cpus=Mask.parse("0-3")),)) == Plan()


def test_a_shrinking_set_keeps_its_offline_cpu_in_one_write() -> None:
    current = {"a": cpus("0-7", effective="0-2,4-7")}
    desired = (Setting("a", cpus=Mask.parse("0-3")),)
    assert lines(make_plan(current, desired)) == [("SHRINK", "a", "0-3")]


def test_a_cgroup_that_is_gone_or_lacks_the_controller_gets_no_write() -> None:
    bare = CgroupState(None, None, None, None, populated=True)
    desired = (
        Setting("gone", cpus=Mask.of(1), mems=Mask.of(0), values=quota()),
        Setting("bare", cpus=Mask.of(1), mems=Mask.of(0), values=quota()),
    )
    assert make_plan({"bare": bare}, desired) == Plan()


def test_memory_of_running_processes_is_not_moved_unasked() -> None:
    running = replace(FRESH, populated=True)
    desired = Setting("a", mems=Mask.of(0))
    withheld = Write(WriteStage.GIVE, "a", "cpuset.mems", "0")
    assert make_plan({"a": running}, (desired,)) == Plan(withheld=(withheld,))
    asked = make_plan({"a": running}, (replace(desired, move_memory=True),))
    assert [(w.file, w.value) for w in asked.writes] == [("cpuset.mems", "0")]
    assert asked.withheld == ()


def test_running_processes_get_further_memory_nodes_at_once() -> None:
    """What is on a node that stays is not migrated."""
    running = replace(FRESH, populated=True, mems=Mask.of(0), mems_effective=Mask.of(0))
    plan = make_plan({"a": running}, (Setting("a", mems=NODES),))
    assert [(w.file, w.value) for w in plan.writes] == [("cpuset.mems", "0-1")]
    assert plan.withheld == ()


def test_memory_nodes_in_effect_anyway_may_be_written_down() -> None:
    running = replace(FRESH, populated=True)
    plan = make_plan({"a": running}, (Setting("a", mems=NODES),))
    assert [(w.file, w.value) for w in plan.writes] == [("cpuset.mems", "0-1")]


def test_higher_quotas_are_given_from_above_and_lower_ones_settled_from_below() -> None:
    tight = replace(FRESH, values=quota(50_000))
    wide = replace(FRESH, values=quota())
    raised = (Setting("a/app", values=quota()), Setting("a", values=quota(90_000)))
    assert lines(make_plan({"a": tight, "a/app": tight}, raised)) == [
        ("GIVE", "a", "90000 100000"),
        ("GIVE", "a/app", "max 100000"),
    ]
    lowered = (Setting("a", values=quota(50_000)), Setting("a/app", values=quota(20_000)))
    assert lines(make_plan({"a": wide, "a/app": wide}, lowered)) == [
        ("SETTLE", "a/app", "20000 100000"),
        ("SETTLE", "a", "50000 100000"),
    ]


def test_within_a_stage_memory_nodes_come_before_cpus_and_cpus_before_quotas() -> None:
    state = CgroupState(
        Mask.of(0), Mask.of(0), Mask.of(0), Mask.of(0), populated=False, values=quota(5_000)
    )
    desired = (Setting("a", cpus=ALL, mems=NODES, values=quota()),)
    files = [write.file for write in make_plan({"a": state}, desired).writes]
    assert files == ["cpuset.mems", "cpuset.cpus", "cpu.max"]


def test_an_empty_set_cannot_be_desired() -> None:
    with pytest.raises(ValueError, match=r"cpuset\.cpus of a must not be empty"):
        Setting("a", cpus=EMPTY)


def test_a_child_desired_outside_its_parent_gets_what_the_parent_is_to_have() -> None:
    above, inside = Mask.parse("0-1"), Mask.parse("1-2")
    desired = (Setting("a", cpus=above), Setting("a/app", cpus=inside))
    plan = make_plan({"a": cpus("0-1"), "a/app": cpus("0-1")}, desired)
    assert lines(plan) == [("SHRINK", "a/app", "1")]
    assert plan.unfit == (Unfit("a/app", "cpuset.cpus", inside, "a", above),)


def test_a_child_desired_beside_its_parent_is_not_written_and_all_others_are() -> None:
    desired = (Setting("a", cpus=Mask.of(1)), Setting("a/app", cpus=Mask.of(2)),
               Setting("b", cpus=Mask.of(3)))  # fmt: skip
    plan = make_plan({"a": FRESH, "a/app": FRESH, "b": FRESH}, desired)
    assert lines(plan) == [("SHRINK", "b", "3"), ("SHRINK", "a", "1")]
    assert [each.cgroup for each in plan.unfit] == ["a/app"]


def test_of_a_cgroup_that_is_desired_twice_the_first_setting_counts() -> None:
    twice = (Setting("a", cpus=Mask.of(1)), Setting("a", cpus=Mask.of(2)))
    assert lines(make_plan({"a": FRESH}, twice)) == [("SHRINK", "a", "1")]


def split(text: str, exclusive: str, word: str) -> CgroupState:
    """Return a cgroup with these exclusive CPUs, which is this kind of partition."""
    state = cpus(text) if text else FRESH
    return replace(state, values={**state.values, EXCLUSIVE: exclusive, PARTITION: word})


def apart(path: str, text: str, exclusive: str, word: str) -> Setting:
    values = {EXCLUSIVE: exclusive, PARTITION: word}
    return Setting(path, cpus=Mask.parse(text), exclusive=True, values=values)


@pytest.mark.parametrize(
    ("all_pods", "pod", "main", "expected"),
    [
        # The inner one ends before the outer, and before what each has is taken. Each has what the
        # kernel asks for before it is made one, from the top down.
        (
            "3-5",
            ("3-5", "3-5", "root"),
            ("4", "4", "root"),
            [
                *(("k/p/c", PARTITION, MEMBER), ("k/p/c", EXCLUSIVE, "")),
                *(("k/p", PARTITION, MEMBER), ("k/p", EXCLUSIVE, "3"), ("k", EXCLUSIVE, "3")),
                *(("k/p", "cpuset.cpus", "2-5"), ("k/p/c", "cpuset.cpus", "4")),
                ("k/p", "cpuset.cpus", "3-5"),
                *(("k", EXCLUSIVE, "3-5"), ("k/p", EXCLUSIVE, "3-5"), ("k/p/c", EXCLUSIVE, "4")),
                *(("k/p", PARTITION, "root"), ("k/p/c", PARTITION, "root")),
            ],
        ),
        # One kind becomes the other as it is.
        ("2-3", ("2-3", "2-3", "isolated"), ("2", "2", "root"), [("k/p", PARTITION, "isolated")]),
        # What is inside one that gets other CPUs is made again, too, as it depends on that.
        (
            "1-3",
            ("1-3", "1-3", "root"),
            ("2", "2", "root"),
            [
                *(("k/p/c", PARTITION, MEMBER), ("k/p", PARTITION, MEMBER)),
                ("k/p", "cpuset.cpus", "1-3"),
                *(("k", EXCLUSIVE, "1-3"), ("k/p", EXCLUSIVE, "1-3")),
                *(("k/p", PARTITION, "root"), ("k/p/c", PARTITION, "root")),
            ],
        ),
        (
            "",
            ("2-3", "", MEMBER),
            ("2", "", MEMBER),
            [
                *(("k/p/c", PARTITION, MEMBER), ("k/p/c", EXCLUSIVE, "")),
                *(("k/p", PARTITION, MEMBER), ("k/p", EXCLUSIVE, ""), ("k", EXCLUSIVE, "")),
            ],
        ),
    ],
)
def test_partitions_end_from_the_inside_and_are_made_from_the_outside(
    all_pods: str,
    pod: tuple[str, str, str],
    main: tuple[str, str, str],
    expected: list[tuple[str, str, str]],
) -> None:
    current = {
        "k": split("", "2-3", MEMBER),
        "k/p": split("2-3", "2-3", "root"),
        "k/p/c": split("2", "2", "root"),
    }
    above = Setting("k", values={EXCLUSIVE: all_pods})
    desired = (above, apart("k/p", *pod), apart("k/p/c", *main))
    writes = make_plan(current, desired).writes
    assert [(each.cgroup, each.file, each.value) for each in writes] == expected
