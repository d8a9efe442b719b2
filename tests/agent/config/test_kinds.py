"""How values of keys are read, by kind."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.agent import DevicePluginsConfig
from agent.config.cluster import BesideKubeletConfig, KubernetesConfig
from agent.config.devices import HostDeviceClass, criteria_text, variable_part
from agent.config.durations import duration_text, seconds_of
from agent.config.load import load_config, override
from agent.config.model import Config, ConfigError
from tests.hostile.growth import demand_quick

if TYPE_CHECKING:
    from agent.config.keys import Section

EXCLUSIVE: Final = "numawarden.dev/exclusive"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10s", 10), ("1m30s", 90), ("1h", 3600), ("500ms", 0.5), ("0", 0), ("2us", 2e-6)),
        *((text, None) for text in ("", "10", "s", "10 s", "-1s", "1d", "1s2", "x1s", "1.s")),
        *((text, None) for text in ("٣s", "1s" * 99, "1e3s")),
    ],
)
def test_go_durations_are_read_and_nothing_else(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@given(st.integers(0, 86_400 * 10**9))
def test_a_written_duration_is_read_as_the_same_to_the_nanosecond(nanoseconds: int) -> None:
    seconds = seconds_of(duration_text(nanoseconds / 10**9))
    assert seconds is not None
    assert round(seconds * 10**9) == nanoseconds


@pytest.mark.parametrize("value", ["0", "-0.1", "1.01", "9e9", "nan", "x"])
def test_a_throttling_factor_is_above_0_and_at_most_1(value: str) -> None:
    with pytest.raises(ConfigError, match="is not above 0 and at most 1"):
        load_config(f"memoryThrottlingFactor: {value}", "x")


def mistakes(text: str) -> list[str]:
    """Return the mistakes in a value of `agent`."""
    with pytest.raises(ConfigError) as caught:
        load_config(f"agent: {{{text}}}", "x")
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "devicePlugins: {enabled: true, directory: /run/plugins, callTimeout: 12s500ms}",
            DevicePluginsConfig(enabled=True, directory=Path("/run/plugins"), call_timeout=12.5),
        ),
        (
            "kubernetes: {publishTopology: true, nodeName: w-1.a, server: 'https://[fd00::1]:6443/'}",
            KubernetesConfig(
                publish_topology=True, node_name="w-1.a", server="https://[fd00::1]:6443"
            ),
        ),
        (
            "kubernetes: {tokenFile: /t, caFile: /c}",
            KubernetesConfig(token_file=Path("/t"), ca_file=Path("/c")),
        ),
        ("kubelet: {}", BesideKubeletConfig(exclusive_resource=EXCLUSIVE)),
        ('kubelet: {exclusiveResource: ""}', BesideKubeletConfig(exclusive_resource="")),
        ("kubelet: {exclusiveResource: a.b/c}", BesideKubeletConfig(exclusive_resource="a.b/c")),
    ],
)
def test_a_section_is_read(text: str, read: Section) -> None:
    agent = load_config(f"agent: {{{text}}}", "x").agent
    assert read in (agent.device_plugins, agent.kubernetes, agent.kubelet)


def test_either_switch_needs_the_api_server() -> None:
    assert not Config().agent.kubernetes.enabled
    for key in ("publishTopology", "events"):
        assert load_config(f"agent: {{kubernetes: {{{key}: true}}}}", "x").agent.kubernetes.enabled


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("limits.manifestBytes", "x", '"x" is not a quantity'),
        ("devicePlugins.enabled", "1", "expected true or false"),
        ("devicePlugins.directory", "plugins", "is not an absolute path"),
        ("devicePlugins.directory", f"/{'a' * 64}", "at most 64 bytes"),
        ("devicePlugins.directory", "/" + "\u00e9" * 32, "at most 64 bytes"),
        ("devicePlugins.directory", f"{'/' * 64}a", "at most 64 bytes"),
        ("devicePlugins.callTimeout", "31s", "is not between 100ms and 30s"),
        ("devicePlugins.callTimeouts", "3s", 'did you mean "callTimeout"'),
        *(
            ("kubernetes.nodeName", f"'{name}'", "is not the name of a node, such as worker-1")
            for name in ("Worker", "a_b", "-a", "a.", "a..b", "a" * 254, "a b", "../a")
        ),
        *(
            ("kubernetes.server", f"'{url}'", "is not a URL such as https://10.0.0.1:6443")
            for url in (
                *("http://10.0.0.1:6443", "10.0.0.1:6443", "https://", "https://a:b", "HTTPS://a"),
                *("https://a:0", "https://a:99999", "https://u:p@a", "https://a?x=1"),
                *("https://a?", "https://a#", "https://a:", "https://a:/x"),
                *("https://a#x", "https://[fd00::1", "https://a b", "https://ä"),
            )
        ),
        *(
            ("kubelet.exclusiveResource", name, f'"{name}" is not an extended resource: ')
            for name in ("cpu", "exclusive", "kubernetes.io/x", "a.b/c/d", "a b/c")
        ),
    ],
)
def test_what_a_key_does_not_take_is_named_by_its_path(key: str, value: str, message: str) -> None:
    section, _, name = key.partition(".")
    (mistake,) = mistakes(f"{section}: {{{name}: {value}}}")
    assert mistake.startswith(f"agent.{key}: ")
    assert message in mistake


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (f"devices: {{{EXCLUSIVE}: [{{id: a}}]}}", "agent.devices"),
        (f"hostDevices: {{{EXCLUSIVE}: [{{driver: a}}]}}", "agent.hostDevices"),
        (f"ignoredResources: [{EXCLUSIVE}]", "agent.ignoredResources"),
    ],
)
def test_the_resource_of_pods_that_opt_in_has_no_devices(other: str, key: str) -> None:
    (mistake,) = mistakes(f"kubelet: {{enabled: true}}, {other}")
    assert mistake.startswith(f"agent.kubelet.exclusiveResource: {EXCLUSIVE} is in {key}, too")
    for kubelet in ("{enabled: false}", "{enabled: true, exclusiveResource: x.y/z}"):
        load_config(f"agent: {{kubelet: {kubelet}, {other}}}", "x")


VF: Final = "example.com/vf"
EVERY_CRITERION: Final = (
    '{pciClass: "0x0200", vendor: "0x8086", device: "154C", driver: vfio-pci, '
    'address: "0000:3B:*", interface: "Ens1f[0-3]*", virtualFunctionsOf: "ens?f0"}'
)


def classes(text: str) -> tuple[HostDeviceClass, ...]:
    """Return the classes of a value of `agent.hostDevices`."""
    return load_config(f"agent: {{hostDevices: {text}}}", "x").agent.host_devices


def test_a_class_has_each_criterion_and_classes_are_in_the_order_of_the_file() -> None:
    found = classes(f'{{{VF}: [{EVERY_CRITERION}, {{interface: "*"}}], a.b/c: [{{driver: x}}]}}')
    everything = ("0200", "8086", "154c", "vfio-pci", "0000:3b:*", "Ens1f[0-3]*", "ens?f0")
    assert found == (
        HostDeviceClass(VF, *everything),
        HostDeviceClass(VF, interface="*"),
        HostDeviceClass("a.b/c", driver="x"),
    )
    assert criteria_text(found[2]) == "driver x"


@pytest.mark.parametrize("text", ["02", "0x02", "0200", "020000", "0X0108"])
def test_a_class_of_devices_has_two_four_or_six_digits(text: str) -> None:
    (found,) = classes(f'{{{VF}: [{{pciClass: "{text}"}}]}}')
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
def test_a_criterion_that_no_device_can_meet_has_its_place(criterion: str, message: str) -> None:
    (mistake,) = mistakes(f"hostDevices: {{{VF}: [{{driver: a}}, {{{criterion}}}]}}")
    key = criterion.partition(":")[0]
    assert mistake.startswith(f'agent.hostDevices["{VF}"][1].{key}: ')
    assert message in mistake


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{{{VF}: [{{}}]}}", "all devices of the host would be of this class"),
        (f"{{{VF}: [{{driver: null}}]}}", "all devices of the host would be of this class"),
        (f"[{{resource: {VF}}}]", "expected a mapping, found a list"),
        (f"{{{VF}: []}}", "has no class"),
        (f"{{{VF}: [a]}}", "expected a mapping, found the text"),
        (f"{{{VF}: [{{driver: a}}, {{driver: a}}]}}", "listed twice"),
        ("{cpu: [{driver: a}]}", "is not a resource of devices"),
        ("{kubernetes.io/x: [{driver: a}]}", "is not a resource of devices"),
        (
            "{a.b/c-d: [{driver: a}], a.b/c_d: [{driver: b}]}",
            "a.b/c_d and a.b/c-d have the same environment variable, PCIDEVICE_A_B_C_D",
        ),
    ],
)
def test_what_cannot_be_meant_is_rejected(text: str, message: str) -> None:
    (mistake,) = mistakes(f"hostDevices: {text}")
    assert message in mistake


def test_all_mistakes_are_reported_at_once() -> None:
    found = mistakes('hostDevices: {cpu: [{vendor: "1"}], a.b/c: [{}, {adress: x}], a.b/d: []}')
    assert len(found) == 5


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (f"devices: {{{VF}: [{{id: a}}]}}", "agent.devices"),
        (f"devices: {{{VF}: []}}", "agent.devices"),
        (f"ignoredResources: [{VF}]", "agent.ignoredResources"),
    ],
)
def test_a_resource_has_one_provider(other: str, key: str) -> None:
    text = f"agent:\n  {other}\n  hostDevices:\n    {VF}: [{{driver: a}}, {{driver: b}}]\n"
    with pytest.raises(ConfigError) as caught:
        load_config(text, "x")
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (f'agent.hostDevices["{VF}"]', 4)
    assert f"{VF} is in {key}, too" in problem.message


def test_a_setting_replaces_the_classes_of_a_resource_and_keeps_the_others() -> None:
    config = load_config("agent: {hostDevices: {a.b/c: [{driver: x}], a.b/d: [{driver: y}]}}", "x")
    changed = override(config, ["agent.hostDevices.a.b/c=[{driver: z}]"])
    assert changed.agent.host_devices == (
        HostDeviceClass("a.b/c", driver="z"),
        HostDeviceClass("a.b/d", driver="y"),
    )


def test_an_environment_variable_has_the_letters_and_digits_of_its_resource() -> None:
    assert variable_part("intel.com/sriov-net_A1") == "INTEL_COM_SRIOV_NET_A1"


@pytest.mark.parametrize("unit", ["*", "*a", "?*", "[a]*", "[!-~]*", "a*b"])
def test_no_accepted_pattern_takes_long_to_compare_with_a_name(unit: str) -> None:
    """The longest interface name has 15 characters, the longest PCI address 16."""

    def compare(pattern: str) -> object:
        return fnmatchcase("a" * 15 + "!", pattern)

    accepted = (unit * 64)[:64]
    classes(f'{{{VF}: [{{interface: "{accepted}"}}]}}')
    demand_quick(compare, lambda length: (unit * length)[:length], longest=64)
