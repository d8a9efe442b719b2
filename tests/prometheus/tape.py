"""What a Prometheus would have stored of an agent: scrapes at the steps of a fake clock."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.agent.server.support import FakeClock
from tests.agent.server.test_monitoring import fetch
from tests.prometheus import ROOT, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.agent.server.support import Running

ALERTS: Final = ROOT / "deploy/prometheus/alerts.yaml"
STEP: Final = 15
INSTANCE: Final = "numa1:9464"


class TapeClock(FakeClock):
    """The clock of an agent whose Unix time began when it was made, as promtool's does."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self.now
        self._timer_began = asyncio.Event()

    def time(self) -> float:
        return self.now - self._began

    async def sleep(self, seconds: float) -> None:
        asyncio.get_running_loop().call_soon(self._timer_began.set)
        await super().sleep(seconds)

    async def until(self, at_rest: Callable[[], bool]) -> None:
        """Wait for something that holds at the latest once all timers run again."""
        while not at_rest():
            self._timer_began.clear()
            await self._timer_began.wait()

    @property
    def sleeping(self) -> int:
        """How many timers run."""
        return sum(not woken.done() for _, woken in self._sleepers)


class Tape:
    """The samples of one target, a step of 15 seconds each; `job` is the job that scrapes it."""

    def __init__(self, clock: TapeClock, job: str = "numawarden") -> None:
        self.clock = clock
        self.steps = 0
        self._target = {"job": job, "instance": INSTANCE}
        self._series: dict[str, dict[int, float]] = defaultdict(dict)

    @property
    def seconds(self) -> int:
        """When the last scrape was, in seconds since the clock began."""
        return STEP * (self.steps - 1)

    async def run(
        self,
        agent: Running,
        minutes: float = 0,
        before_each: Callable[[], None] = lambda: None,
        *,
        hangs: bool = False,
    ) -> None:
        """Scrape once, then at every step of some minutes, in which the agent lives on.

        `before_each` is called at every step before the agent compares. Each step waits until it
        has compared, unless it `hangs`.
        """
        await self._scrape(agent)
        timers = self.clock.sleeping
        for _ in range(int(minutes * 60 / STEP)):
            before_each()
            self.clock.advance(STEP)
            if not hangs:
                await self.clock.until(lambda: _compared(agent) and self.clock.sleeping >= timers)
            await self._scrape(agent)

    def down(self, minutes: float) -> None:
        """Let scrapes of some minutes fail: nothing listens."""
        for _ in range(int(minutes * 60 / STEP)):
            self.clock.advance(STEP)
            self._note("up", {}, 0)

    async def _scrape(self, agent: Running) -> None:
        status, text = await fetch(agent, "/metrics")
        assert status == 200
        self._note("up", {}, 1)
        # The library's parser has every counter end in _total, and some of the kubelet's do not:
        # without their types, samples keep their names.
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]
        for family in text_string_to_metric_families("".join(lines)):
            for sample in family.samples:
                self._note(sample.name, sample.labels, sample.value)

    def _note(self, name: str, labels: Mapping[str, str], value: float) -> None:
        pairs = ",".join(
            f"{label}={json.dumps(text)}" for label, text in {**self._target, **labels}.items()
        )
        step = int(self.clock.time()) // STEP
        self._series[f"{name}{{{pairs}}}"][step] = value
        self.steps = max(self.steps, step + 1)

    def series(self) -> Iterator[dict[str, str]]:
        """Yield the series as promtool wants them."""
        for name, values in self._series.items():
            yield {"series": name, "values": " ".join(self._texts(values))}

    def open_metrics(self) -> str:
        """Return all samples with their times, as promtool imports them."""
        lines = (
            f"{name} {value:.17g} {step * STEP}"
            for name, values in self._series.items()
            for step, value in values.items()
        )
        return "\n".join((*lines, "# EOF", ""))

    def _texts(self, values: Mapping[int, float]) -> Iterator[str]:
        there = False
        for step in range(self.steps):
            if step in values:
                yield f"{values[step]:.17g}"
            else:
                # What a target no longer shows is marked as ended, as a scrape does.
                yield "stale" if there else "_"
            there = step in values


def _compared(agent: Running) -> bool:
    state, now = agent.controller.state, agent.world.clock.time()
    return "reconcile" in state.observed.conditions or (
        state.observed.last_reconcile is not None and state.observed.last_reconcile.finished == now
    )


def firing(tape: Tape, folder: Path, at: Mapping[int, frozenset[str]]) -> str:
    """Let promtool compare which alerts fire at which seconds of a tape; return what differs."""
    checks = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{seconds}s",
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
            ],
        }
        for seconds, names in at.items()
    ]
    test = {
        "interval": f"{STEP}s",
        "input_series": list(tape.series()),
        "promql_expr_test": checks,
    }
    file = folder / "test.yaml"
    rules = {"rule_files": [str(ALERTS)], "evaluation_interval": f"{STEP}s", "tests": [test]}
    file.write_text(yaml.safe_dump(rules, width=1 << 20))
    command = [program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
