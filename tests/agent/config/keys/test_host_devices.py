from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.keys.host_devices import criteria_text, variable_part
from agent.config.load import config_yaml, load_config, override
from agent.config.model import AgentConfig, Config, ConfigError, HostDeviceClass
from tests.hostile.growth import demand_quick

RESOURCE: Final = "example.com/vf"
EVERY_CRITERION: Final = (
    '{pciClass: "0x0200", vendor: "0x8086", device: "154C", driver: vfio-pci, '
    'address: "0000:3B:*", interface: "Ens1f[0-3]*", virtualFunctionsOf: "ens?f0"}'
)


def classes(text: str) -> tuple[HostDeviceClass, ...]:
    """Return the classes of a value of `agent.hostDevices`."""
    return load_config(f"agent: {{hostDevices: {text}}}", "x").agent.host_devices


def mistakes(text: str) -> list[str]:
    """Return the mistakes in a value of `agent.hostDevices`."""
    with pytest.raises(ConfigError) as caught:
        classes(text)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_a_class_has_each_criterion_that_is_given() -> None:
    assert classes(f"{{{RESOURCE}: [{EVERY_CRITERION}]}}") == (
        HostDeviceClass(
            RESOURCE, "0200", "8086", "154c", "vfio-pci", "0000:3b:*", "Ens1f[0-3]*", "ens?f0"
        ),
    )


def test_classes_stand_in_the_order_of_the_file() -> None:
    found = classes('{b.c/d: [{driver: x}, {interface: "*"}], a.b/c: [{driver: x}]}')
    assert [(each.resource, each.driver) for each in found] == [
        ("b.c/d", "x"),
        ("b.c/d", ""),
        ("a.b/c", "x"),
    ]


@pytest.mark.parametrize("text", ["02", "0x02", "0200", "020000", "0X0108"])
def test_a_class_of_devices_has_two_four_or_six_digits(text: str) -> None:
    (found,) = classes(f'{{{RESOURCE}: [{{pciClass: "{text}"}}]}}')
    assert found.pci_class == text.lower().removeprefix("0x")


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        ('pciClass: "020"', "2, 4 or 6 hexadecimal digits"),
        ('pciClass: "02000000"', "2, 4 or 6 hexadecimal digits"),
        ('pciClass: "xx"', "2, 4 or 6 hexadecimal digits"),
        ('vendor: "808"', "4 hexadecimal digits"),
        ('device: "0x154c1"', "4 hexadecimal digits"),
        ("vendor: 8086", "put it in quotes"),
        ('driver: "vfio pci"', "name of a kernel driver"),
        ('driver: "../x"', "name of a kernel driver"),
        ('interface: ""', "up to 64 characters"),
        ('interface: "a/b"', "up to 64 characters"),
        (f'interface: "{"a" * 65}"', "up to 64 characters"),
        ('virtualFunctionsOf: "a b"', "up to 64 characters"),
        ('address: "0000:3b\\n"', "up to 64 characters"),
        ("drivers: x", 'did you mean "driver"'),
    ],
)
def test_a_criterion_that_no_device_can_meet_is_rejected_in_its_place(
    criterion: str, message: str
) -> None:
    (mistake,) = mistakes(f"{{{RESOURCE}: [{{driver: a}}, {{{criterion}}}]}}")
    key = criterion.partition(":")[0]
    assert mistake.startswith(f'agent.hostDevices["{RESOURCE}"][1].{key}: ')
    assert message in mistake


@pytest.mark.parametrize("text", ["[{}]", "[{driver: null}]"])
def test_a_class_without_a_criterion_is_rejected(text: str) -> None:
    (mistake,) = mistakes(f"{{{RESOURCE}: {text}}}")
    assert "all devices of the host would be of this class" in mistake


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[{{resource: {RESOURCE}}}]", "expected a mapping, found a list"),
        (f"{{{RESOURCE}: []}}", "has no class"),
        (f"{{{RESOURCE}: [{{driver: a}}, {{driver: a}}]}}", "listed twice"),
        ("{cpu: [{driver: a}]}", "is not a resource of devices"),
        ("{kubernetes.io/x: [{driver: a}]}", "is not a resource of devices"),
        (
            "{a.b/c-d: [{driver: a}], a.b/c_d: [{driver: b}]}",
            "a.b/c_d and a.b/c-d have the same environment variable, PCIDEVICE_A_B_C_D",
        ),
    ],
)
def test_what_cannot_be_meant_is_rejected(text: str, message: str) -> None:
    (mistake,) = mistakes(text)
    assert message in mistake


def test_all_mistakes_are_reported_at_once() -> None:
    found = mistakes('{cpu: [{vendor: "1"}], a.b/c: [{}, {adress: x}], a.b/d: []}')
    assert len(found) == 5


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (f"devices: {{{RESOURCE}: [{{id: a}}]}}", "agent.devices"),
        (f"devices: {{{RESOURCE}: []}}", "agent.devices"),
        (f"ignoredResources: [{RESOURCE}]", "agent.ignoredResources"),
    ],
)
def test_a_resource_has_one_provider(other: str, key: str) -> None:
    text = f"agent:\n  {other}\n  hostDevices:\n    {RESOURCE}: [{{driver: a}}, {{driver: b}}]\n"
    with pytest.raises(ConfigError) as caught:
        load_config(text, "x")
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (f'agent.hostDevices["{RESOURCE}"]', 4)
    assert f"{RESOURCE} is in {key}, too" in problem.message


def test_other_resources_may_be_devices_of_a_list_and_ignored() -> None:
    text = f"{{hostDevices: {{{RESOURCE}: [{{driver: a}}]}}, devices: {{a.b/c: []}}}}"
    assert load_config(f"agent: {text}", "x").agent.host_devices


def test_a_setting_replaces_the_classes_of_a_resource_and_keeps_the_others() -> None:
    config = load_config("agent: {hostDevices: {a.b/c: [{driver: x}], a.b/d: [{driver: y}]}}", "x")
    changed = override(config, ["agent.hostDevices.a.b/c=[{driver: z}]"])
    assert changed.agent.host_devices == (
        HostDeviceClass("a.b/c", driver="z"),
        HostDeviceClass("a.b/d", driver="y"),
    )


def _hex(*lengths: int) -> st.SearchStrategy[str]:
    return st.sampled_from(lengths).flatmap(
        lambda length: st.text("0123456789abcdef", min_size=length, max_size=length)
    )


PATTERNS: Final = st.text("ens1f0*?[]!-:.", min_size=1, max_size=64)
CRITERIA: Final = st.fixed_dictionaries(
    {},
    optional={
        "pci_class": _hex(2, 4, 6),
        "vendor": _hex(4),
        "device": _hex(4),
        "driver": st.from_regex(r"\A[a-z][a-z0-9_-]{0,20}\Z"),
        "address": PATTERNS,
        "interface": PATTERNS,
        "virtual_functions_of": PATTERNS,
    },
).filter(bool)


@given(st.lists(st.tuples(st.sampled_from(["a.b/c", "a.b/d"]), CRITERIA), max_size=5))
def test_written_classes_are_read_as_the_same(drawn: list[tuple[str, dict[str, str]]]) -> None:
    unique = dict.fromkeys(HostDeviceClass(resource, **criteria) for resource, criteria in drawn)
    listed = tuple(sorted(unique, key=lambda each: each.resource))
    config = Config(agent=AgentConfig(host_devices=listed))
    assert load_config(config_yaml(config), "x").agent.host_devices == listed


def test_criteria_are_shown_as_the_file_has_them() -> None:
    (found,) = classes(f"{{{RESOURCE}: [{{driver: vfio-pci, virtualFunctionsOf: ens1f0}}]}}")
    assert criteria_text(found) == "driver vfio-pci, virtualFunctionsOf ens1f0"


def test_an_environment_variable_has_the_letters_and_digits_of_its_resource() -> None:
    assert variable_part("intel.com/sriov-net_A1") == "INTEL_COM_SRIOV_NET_A1"


@pytest.mark.parametrize("unit", ["*", "*a", "?*", "[a]*", "[!-~]*", "a*b"])
def test_no_accepted_pattern_takes_long_to_compare_with_a_name(unit: str) -> None:
    """The longest interface name has 15 characters, the longest PCI address 16."""

    def compare(pattern: str) -> object:
        return fnmatchcase("a" * 15 + "!", pattern)

    accepted = (unit * 64)[:64]
    classes(f'{{{RESOURCE}: [{{interface: "{accepted}"}}]}}')
    demand_quick(compare, lambda length: (unit * length)[:length], longest=64)
