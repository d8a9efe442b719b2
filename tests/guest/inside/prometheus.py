"""A real Prometheus that scrapes one address, and promtool."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from tests.guest.inside.checks import STUCK
from tests.guest.inside.commands import Outcome, attempt

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS: Final = "127.0.0.1:9090"

CONFIG: Final = """\
global:
  scrape_interval: 3s
  scrape_timeout: 3s
  evaluation_interval: 3s
rule_files: [{rules}]
scrape_configs:
  - job_name: {job}
    static_configs:
      - targets: ["{target}"]
"""


class Prometheus:
    """A Prometheus server with one job."""

    def __init__(self, work: Path, config: Path) -> None:
        self._log = (work / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={work}/prometheus",
                f"--web.listen-address={ADDRESS}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def stop(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def query(self, expression: str) -> list[dict[str, object]]:
        """Return an instant query's result; nothing while the server is starting."""
        data = self._get(f"query?{urlencode({'query': expression})}")
        result = data.get("result", [])
        assert isinstance(result, list)
        return result

    def value(self, expression: str) -> float | None:
        """Return the value of a query that gives one sample, else None."""
        match self.query(expression):
            case [{"value": [_, text]}]:
                return float(str(text))
            case _:
                return None

    def targets(self) -> list[dict[str, object]]:
        """Return the active targets with their health and last error."""
        targets = self._get("targets?state=active").get("activeTargets", [])
        assert isinstance(targets, list)
        return targets

    def _get(self, path: str) -> dict[str, object]:
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}/api/v1/{path}", timeout=STUCK) as reply:
                data: dict[str, object] = json.load(reply)["data"]
                return data
        except urllib.error.URLError:
            return {}


def write_config(file: Path, job: str, target: str, rules: Path | None = None) -> Path:
    """Write a configuration that scrapes `target` (host:port), with a file of alert rules."""
    file.write_text(CONFIG.format(job=job, target=target, rules=rules or ""))
    return file


def check_metrics(text: str) -> Outcome:
    """Let promtool judge a page of metrics: syntax and naming rules."""
    return attempt("promtool", "check", "metrics", stdin=text)
