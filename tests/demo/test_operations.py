"""docs/operations.md names only what exists and shows only what is printed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pytest
import yaml

from agent.cli.errors import ExitCode
from agent.cli.main import numawarden
from agent.managers.decision import Reason, out_of
from agent.managers.registry import MANAGERS
from agent.managers.violations import Rule
from agent.reconcile.diff import Cause
from agent.server import metrics as names
from tests.demo.host import DemoHost

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (ROOT / "docs/operations.md").read_text()
SECURITY: Final = (ROOT / "docs/security.md").read_text()
ALERTS: Final = ROOT / "deploy/prometheus/alerts.yaml"
EXAMPLES: Final = ROOT / "deploy/examples"
#: Pages that explain lines of the log, too.
BESIDE: Final = "".join(
    (ROOT / f"docs/{name}.md").read_text() for name in ("devices", "kubernetes", "rollout")
)
#: Names in backticks, of a text in which a name may go on in the next line.
QUOTED: Final = re.findall(
    r"`([^`]+)`", re.sub(r"\s+", " ", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))
)


def sources() -> str:
    return "\n".join(file.read_text() for file in sorted((ROOT / "agent").rglob("*.py")))


def rows(heading: str) -> list[str]:
    """Return the names in the first cells of the table with this heading."""
    table = TEXT.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_metric_exists() -> None:
    known = {name for metric in names.all_of(MANAGERS) for name in metric.names}
    named = {
        re.split(r"[{ ]", text)[0] for text in QUOTED if re.match(r"numawarden_|kubelet_", text)
    }
    assert named
    assert named <= known


def test_every_command_and_option_exists() -> None:
    asked = [text.split()[1:] for text in QUOTED if text.startswith("numawarden ")]
    asked += [line.split(";")[0].split()[2:] for line in commands()]
    assert asked
    for words in asked:
        command: click.Command | None = numawarden
        while isinstance(command, click.Group) and words:
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, words
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_reasons_causes_and_rules_are_all_explained_and_no_others() -> None:
    found = Counter(rows("reason"))
    of_resources = [reason for reason in found if reason.startswith(out_of(""))]
    assert {out_of("pods"), out_of("cpu"), out_of("memory"), out_of("")} == set(of_resources)
    assert found == Counter([*map(str, Reason), *of_resources])
    assert Counter(rows("cause")) == Counter(map(str, Cause))
    assert Counter(rows("rule")) == Counter(map(str, Rule))


def test_events_are_all_explained_and_no_others() -> None:
    found = set(re.findall(r'\._?(?:publish|report_running)\(\s*"(\w+)"', sources())) | {
        "EventsLost"
    }
    assert set(rows("event (`numawarden watch`)")) == found


def test_every_line_of_the_log_exists() -> None:
    said = set(re.findall(r'(?:log|lines)\.\w+\(\s*"([^"]+)"', sources()))
    flat = re.sub(r"\s+", " ", TEXT)
    named = set(re.findall(r"\b[Ll]og `([^`]+)`", flat))
    assert len(named) > 10
    assert named <= said


def test_every_warning_and_error_of_the_log_is_explained() -> None:
    said = set(re.findall(r'(?:log|lines)\.(?:warning|error|exception)\(\s*"([^"]+)"', sources()))
    explained = {*QUOTED, *re.findall(r"`([^`\n]+)`", BESIDE)}
    assert sorted(said - explained - UNEXPLAINED) == []


#: Lines that say all there is to say.
UNEXPLAINED: Final = {
    "connection failed",
    "runtime file unusable",
    "watch failed",
    "periodic action failed",
    "request failed",
    "service manager notification failed",
}


def test_every_key_of_the_configuration_exists() -> None:
    keys = set(
        re.findall(r"^ *#? *(\w+):", (ROOT / "deploy/config.yaml").read_text(), flags=re.MULTILINE)
    )
    named = [text for text in (*QUOTED, *re.findall(r"`([^`]+)`", SECURITY)) if KEY.fullmatch(text)]
    assert named
    assert {part for text in named for part in re.split(r"[.:] ?", text)} <= keys | {
        "none",
        "systemd",
    }


KEY: Final = re.compile(r"agent(\.\w+)+|[a-z]+[A-Z]\w+(Policy|Driver|Period|CPUs|Path)(: \w+)?")


def test_every_file_and_section_that_is_linked_exists() -> None:
    for text in (TEXT, SECURITY):
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert links
        for link in links:
            file, _, section = link.partition("#")
            target = ROOT / "docs" / file
            assert target.is_file(), link
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
            assert not section or section in slugs, link


def test_alerts_are_all_explained_and_ask_for_metrics_that_exist() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    listed = [rule["alert"] for rule in group["rules"] if _runbook(rule).endswith("#alerts")]
    assert re.findall(r"^- `(Numawarden\w+)`: ", TEXT, re.MULTILINE) == listed
    known = {name for metric in names.all_of(MANAGERS) for name in metric.names}
    for rule in group["rules"]:
        asked = set(re.findall(r"\b(?:numawarden|kubelet|resource_manager)_\w+", rule["expr"]))
        assert asked <= known
        assert asked or rule["alert"] in {"NumawardenDown", "NumawardenAbsent"}


def _runbook(rule: dict[str, dict[str, str]]) -> str:
    return rule["annotations"]["runbook_url"]


def test_every_exit_code_that_is_named_exists() -> None:
    assert {int(code) for code in re.findall(r"exit\s+code\s+(\d+)", TEXT)} <= set(
        map(int, ExitCode)
    )


def blocks() -> Iterator[list[str]]:
    """Yield each command that is shown, with the lines that are shown of its output."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.DOTALL):
        for shown in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
            yield shown.splitlines()


def commands() -> list[str]:
    return [command for command, *_ in blocks()]


class Incidents:
    """The host of the demo, brought into each of the states that are shown."""

    def __init__(self, folder: Path) -> None:
        self.host = DemoHost(folder, cgroup_root="/machine")
        self.folder = folder
        #: What stands where on a host that is installed as the README says.
        self._places = {
            f"{folder}/state": "/var/lib/numawarden",
            f"{folder}/pod.yaml": "/etc/numawarden/config.yaml",
            f"{EXAMPLES}/": "",
            f"{folder}/": "",
        }

    def run(self) -> Iterator[str]:
        """Yield what each command prints, in the order of the document."""
        with self.host.agent("pod"):
            self.host.command("admit", str(self.host.manifest(EXAMPLES / "mixed.yaml", "mixed")))
            self.host.start("mixed")
            yield self._ask("admit", f"{EXAMPLES}/empty-pool.yaml", code=1)
            (self.host.cgroups / "machine/cpuset.cpus").write_text("0-2\n")
            yield self._ask("admit", f"{EXAMPLES}/guaranteed.yaml", code=7)
            yield self._ask("check", "--cgroups", code=7)
            self.host.client().reconcile()
            (self.host.cgroups / "machine/cpuset.cpus").write_text("0-31\n")
            yield from self._maintenance()
            (self.host.cgroups / "machine/cpuset.cpus").write_text("0-2\n")
            new = self._changed("new", '"0,16"', '"0,3,16,19"', 'cpu: "2"', 'cpu: "4"')
            yield self._ask("config", "check", new, "--against-state", code=1)

    def _maintenance(self) -> Iterator[str]:
        yield self._ask("drain", "--dry-run", "core:1", code=0)
        yield self._ask("cordon", "core:8-9", "--reason", "fan 2", code=0)
        yield self._ask("uncordon", "core:8-9", code=0)

    def _changed(self, name: str, *replaced: str) -> str:
        text = (self.folder / "pod.yaml").read_text()
        for old, new in zip(replaced[::2], replaced[1::2], strict=True):
            text = text.replace(old, new)
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        return str(file)

    def _ask(self, *arguments: str, code: int) -> str:
        text = self.host.command(*arguments, expect=code) + f"exit code {code}\n"
        for place, usual in self._places.items():
            text = text.replace(place, usual)
        return text


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return list(Incidents(tmp_path_factory.mktemp("incidents")).run())


def test_every_output_that_is_shown_is_tried(printed: list[str]) -> None:
    assert len(printed) == len(commands())


@pytest.mark.parametrize("number", range(len(commands())), ids=lambda n: commands()[n][2:40])
def test_what_is_shown_is_printed_in_this_order(printed: list[str], number: int) -> None:
    _, *shown = list(blocks())[number]
    rest = iter(printed[number].splitlines())
    for line in shown:
        if line != "...":
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert any(re.fullmatch(pattern, each) for each in rest), line
