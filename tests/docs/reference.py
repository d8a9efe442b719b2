"""The reference of the configuration, from the declarations of its keys.

`make docs` writes `docs/configuration.md` and the commented example `deploy/config.yaml`, beside
them the OpenAPI document of the API and the table of exit codes in the README.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from agent.cli.errors import ExitCode
from agent.config.load import yaml_text
from agent.config.model import Config
from tests.docs.hosts import ROOT
from tests.docs.openapi import openapi_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from agent.config.keys import Key
    from agent.yaml import Plain

_WIDTH: Final = 100
#: The keys that say what the document is; what they default to is of no interest.
_MARKERS: Final = ("apiVersion", "kind")
#: The release whose keys do not say since when they exist.
_FIRST: Final = "0.1.0"

#: Kinds that a key shows by its default, or its name.
_PATHS: Final = ("absolute path", 'absolute path, or ""')

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

_PAGE_BEGINS: Final = """\
# Configuration

<!-- Written by `make docs` from the declarations in `agent/config/model.py`. -->

One YAML or JSON file, `/etc/numawarden/config.yaml` in the unit. Keys outside of `agent` have the
names, values and defaults of the kubelet (`KubeletConfiguration`). A key that is left out, or has
no value, has its default; paths are absolute. All mistakes of a file are reported at once.

    numawarden config check FILE        # is the file right, on this host? what follows from it?
    numawarden config show FILE         # every key with its value, also of those left out
    numawarden config show --defaults   # every key with its default
    numawarden config schema            # the JSON schema (draft 2020-12) of a file, for editors

`--set KEY=VALUE` lays a single setting over the file, such as `--set agent.metrics.port=9465`. A
commented example is [deploy/config.yaml](../deploy/config.yaml).
"""


def example_file() -> str:
    """Return the commented example with every key."""
    lines = _EXAMPLE_BEGINS.splitlines()
    for key in Config.keys:
        if key.title and key.name not in _MARKERS:
            lines += ["", f"# --- {key.title} ".ljust(_WIDTH - 2, "-")]
        lines += ["", *_example_of(key, "")]
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Return the page with every key."""
    parts = [_PAGE_BEGINS]
    for key in Config.keys:
        parts += [f"## {key.title}\n"] if key.title else []
        parts += _described(key, key.name)
    return "\n".join(parts)


#: What is written from declarations, by the name for `python -m tests.docs`.
_EXIT_CODES: Final = "| exit code | meaning |\n|---|---|\n"


def readme_text() -> str:
    """Return the README with the table of exit codes, which are declared in `agent.cli.errors`."""
    before, _, rest = (ROOT / "README.md").read_text().partition(_EXIT_CODES)
    rows = "".join(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)
    _, _, after = rest.partition("\n\n")
    return f"{before}{_EXIT_CODES}{rows}\n{after}"


REFERENCES: Final[Mapping[str, tuple[Path, Callable[[], str]]]] = {
    "configuration": (ROOT / "docs/configuration.md", configuration_page),
    "example": (ROOT / "deploy/config.yaml", example_file),
    "openapi": (ROOT / "docs/openapi.json", openapi_text),
    "readme": (ROOT / "README.md", readme_text),
}


def _example_of(key: Key, path: str) -> Iterator[str]:
    depth = path.count(".")
    indent = "  " * depth
    for line in _comment(key, _WIDTH - len(indent) - 2):
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
    yield from _wrapped(key.help, width)
    longest = max(map(len, key.values), default=0)
    for value, meaning in key.values.items():
        yield from _wrapped(meaning, width, f"  {value:{longest}}  ", " " * (longest + 4))
    if key.example:
        yield "For example:"
        yield from textwrap.indent(key.example, "  ").splitlines()
    if key.name not in _MARKERS and key.inner is None:
        if not key.values:
            yield from _wrapped(f"type: {key.kind.words}", width)
        remark = f" ({key.remark})" if key.remark else ""
        yield from _wrapped(f"default: {_default(key)}{remark}", width)


def _described(key: Key, path: str) -> Iterator[str]:
    """Yield the paragraphs of a key, and those of the keys in it."""
    yield f"### `{path}`\n"
    yield _markdown(key.help)
    if key.values:
        yield "".join(
            f"{line}\n"
            for value, meaning in key.values.items()
            for line in _wrapped(_escaped(meaning), _WIDTH, f"- `{value}`: ", "  ")
        )
    if key.example:
        yield f"```yaml\n{key.name}:\n{textwrap.indent(key.example, '  ')}```\n"
    listed = ", ".join(key.values)
    obvious = (f"one of {listed}", f"list of {listed}", "true or false", "mapping", *_PATHS)
    facts = "" if key.kind.words in obvious else f"Type: {_escaped(key.kind.words)}."
    if key.name not in _MARKERS and key.inner is None:
        remark = f" ({key.remark})" if key.remark else ""
        facts = f"{facts} Default: `{_default(key)}`{remark}.".lstrip()
    if key.since != _FIRST:
        facts += f" Since: {key.since}."
    yield from [_markdown(facts, escaped=True)] if facts else []
    if key.inner is not None:
        for inner in key.inner.keys:
            yield from _described(inner, f"{path}.{inner.name}")


def _default(key: Key) -> str:
    return yaml_text(key.written_default, one_line=True)


def _markdown(text: str, *, escaped: bool = False) -> str:
    return "\n".join(_wrapped(text if escaped else _escaped(text), _WIDTH)) + "\n"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
