"""The section agent.isolation: what a power class may be, and that the default one exists."""

from __future__ import annotations

import pytest

from agent.config.isolation import IsolationConfig, PowerClass
from agent.config.load import load_config
from agent.config.model import ConfigError
from sysfs.mask import Mask


def load(section: str) -> IsolationConfig:
    return load_config(f"agent: {{isolation: {section}}}", "config.yaml").agent.isolation


def test_a_power_class_has_texts_as_the_kernel_shows_them() -> None:
    found = load("{powerClasses: {fast: {resumeLatency: n/a, minFrequency: 3000000}}, power: fast}")
    assert found.power_classes == {
        "fast": PowerClass(resume_latency="n/a", min_frequency="3000000")
    }


def test_classes_of_memory_are_lists_of_names_and_of_nodes() -> None:
    found = load('{memory: "dram,hbm", memoryClasses: {hbm: 2-3, fast: 4}}')
    assert found.memory == "dram,hbm"
    assert found.memory_classes == {"hbm": Mask.of(2, 3), "fast": Mask.of(4)}


@pytest.mark.parametrize(
    ("section", "path", "said"),
    [
        ("{power: fats, powerClasses: {fast: {}}}", "agent.isolation.power", 'did you mean "fast"'),
        (
            "{powerClasses: {fast: {governor: '../x'}}}",
            "agent.isolation.powerClasses.fast.governor",
            "is not usable here",
        ),
        (
            "{powerClasses: {fast: {governor: performance, energyPreference: power}}}",
            "agent.isolation.powerClasses.fast.energyPreference",
            "takes the preference performance alone",
        ),
        (
            "{powerClasses: {fast: {uncoreMinFrequency: 1850000}}}",
            "agent.isolation.powerClasses.fast.uncoreMinFrequency",
            "in steps of 100000",
        ),
        ("{powerClasses: {Fast!: {}}}", "agent.isolation.powerClasses", "not the name of a class"),
        (
            "{resctrl: {defaultClass: fats, classes: {fast: {}}}}",
            "agent.isolation.resctrl.defaultClass",
            'did you mean "fast"',
        ),
        (
            "{resctrl: {classes: {fast: {L3: 0=50%;1=ff}}}}",
            "agent.isolation.resctrl.classes.fast.L3",
            "a mask such as 0xff0",
        ),
        ("{memory: 'dram,!'}", "agent.isolation.memory", "not the name of a class of memory"),
        ("{memoryClasses: {hbm: x}}", "agent.isolation.memoryClasses.hbm", "list of nodes"),
        ("{memoryClasses: {Fast!: 1}}", "agent.isolation.memoryClasses", "not the name of a class"),
        ("{interrupts: sometimes}", "agent.isolation.interrupts", "never, asked, always"),
    ],
)
def test_a_mistake_is_named_with_its_path(section: str, path: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(section)
    (problem,) = raised.value.problems
    assert problem.path.startswith(path)
    assert said in problem.message
