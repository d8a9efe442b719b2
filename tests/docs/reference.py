"""What is written from declarations.

`make docs` writes the commented example `deploy/config.yaml` from the keys of the configuration
(their page is made with the site: `deploy/site/configuration.py`), the OpenAPI document of the API
and the table of exit codes in the README.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from agent.cli.errors import ExitCode
from agent.config.document import yaml_text
from agent.config.model import Config
from deploy.site.configuration import MARKERS, WIDTH, wrapped, written_default
from tests.docs.hosts import ROOT
from tests.docs.openapi import openapi_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from agent.config.keys import Key
    from agent.yaml import Plain

#: What the example changes, because its reader uses KEP-5526 on a systemd host. Of evictionHard
#: only the signal is shown that counts.
CHANGED: Final[Mapping[str, Plain]] = {
    "cpuManagerPolicy": "static",
    "memoryManagerPolicy": "Static",
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "systemReserved": {"cpu": "1", "memory": "1Gi"},
    "evictionHard": {"memory.available": "100Mi"},
    "featureGates": {"PodLevelResources": True, "PodLevelResourceManagers": True},
    "cgroupDriver": "systemd",
    "staticPodPath": "/etc/numawarden/manifests",
    "agent.isolation.hostSlices": True,
}

_EXAMPLE_BEGINS: Final = """\
# Configuration of numawarden.
#
# Keys outside of "agent" have the kubelet's names, values and defaults (KubeletConfiguration,
# kubelet.config.k8s.io/v1beta1), so that settings can be carried over. Every key of the agent is
# in this file; "default:" says what holds when a key is left out. Unknown keys are rejected.
#
# Check a changed file against this host before it is used:
#
#     numawarden config check /etc/numawarden/config.yaml
#
# A single setting can be given on the command line instead: --set cgroupDriver=cgroupfs
"""


def example_file() -> str:
    """Return the commented example with every key."""
    lines = _EXAMPLE_BEGINS.splitlines()
    for key in Config.keys:
        if key.title and key.name not in MARKERS:
            lines += ["", f"# --- {key.title} ".ljust(WIDTH - 2, "-")]
        lines += ["", *_example_of(key, "")]
    return "\n".join(lines) + "\n"


#: What is written from declarations, by the name for `python -m tests.docs`.
_EXIT_CODES: Final = "| exit code | meaning |\n|---|---|\n"


def readme_text() -> str:
    """Return the README with the table of exit codes, which are declared in `agent.cli.errors`."""
    before, _, rest = (ROOT / "README.md").read_text().partition(_EXIT_CODES)
    rows = "".join(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)
    _, _, after = rest.partition("\n\n")
    return f"{before}{_EXIT_CODES}{rows}\n{after}"


REFERENCES: Final[Mapping[str, tuple[Path, Callable[[], str]]]] = {
    "example": (ROOT / "deploy/config.yaml", example_file),
    "openapi": (ROOT / "docs/openapi.json", openapi_text),
    "readme": (ROOT / "README.md", readme_text),
}


def _example_of(key: Key, path: str) -> Iterator[str]:
    depth = path.count(".")
    indent = "  " * depth
    for line in _comment(key, WIDTH - len(indent) - 2):
        yield f"{indent}# {line}".rstrip()
    if key.inner is not None:
        yield f"{indent}{key.name}:"
        for number, inner in enumerate(key.inner.keys):
            # Keys of the section agent stand apart, those of its small sections together.
            if number and not depth:
                yield ""
            yield from _example_of(inner, f"{path}{key.name}.")
        return
    value = CHANGED.get(f"{path}{key.name}", key.written_default)
    if isinstance(value, dict) and value:
        yield from textwrap.indent(yaml_text({key.name: value}), indent).splitlines()
    else:
        yield f"{indent}{key.name}: {yaml_text(value, one_line=True)}"


def _comment(key: Key, width: int) -> Iterator[str]:
    yield from wrapped(key.help, width)
    listing = key.values if key.inner is not None else {**key.values, **key.kind.parts}
    longest = max(map(len, listing), default=0)
    for value, meaning in listing.items():
        yield from wrapped(meaning, width, f"  {value:{longest}}  ", " " * (longest + 4))
    if key.example:
        yield "For example:"
        yield from textwrap.indent(key.example, "  ").splitlines()
    if key.name not in MARKERS and key.inner is None:
        if not key.values:
            yield from wrapped(f"type: {key.kind.words}", width)
        yield from wrapped(f"default: {written_default(key)}", width)
