"""A real Prometheus that serves what is on a tape."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.agent.server.support import PATIENCE
from tests.prometheus import program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.prometheus.tape import Tape

#: The tapes begin in 1970: nothing is too old.
_RETENTION: Final = "100y"
_READY: Final = "Server is ready to receive web requests"


class Served:
    """A Prometheus at an address; `at` is the second of the tape at which it is asked."""

    def __init__(self, address: str, at: int) -> None:
        self._address = address
        self._at = at

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; raises `HTTPError` for a wrong expression."""
        asked = urllib.parse.urlencode({"query": expression, "time": self._at})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{asked}") as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found


@contextmanager
def serving(tape: Tape, folder: Path) -> Iterator[Served]:
    """Run a Prometheus with the samples of a tape, ready when yielded, and end it."""
    samples, data = folder / "samples.txt", folder / "data"
    samples.write_text(tape.open_metrics())
    import_samples = ("tsdb", "create-blocks-from", "openmetrics", str(samples), str(data))
    subprocess.run([program("promtool"), *import_samples], check=True, capture_output=True)
    config = folder / "prometheus.yaml"
    config.write_text("{}\n")
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--storage.tsdb.retention.time={_RETENTION}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(PATIENCE, process.kill)
        deadline.start()
        try:
            assert process.stderr is not None
            address = _address("".join(_until_ready(process.stderr)))
            deadline.cancel()
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            yield Served(address, tape.seconds)
        finally:
            deadline.cancel()
            process.terminate()


_ADDRESS: Final = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)')


def _until_ready(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines until it is ready and says where it listens: either may be logged first."""
    missing = [re.compile(re.escape(_READY)), _ADDRESS]
    for line in lines:
        yield line
        missing = [each for each in missing if each.search(line) is None]
        if not missing:
            return


def _address(log: str) -> str:
    """Return where a Prometheus listens, by the lines it logged until it was ready."""
    found = _ADDRESS.search(log)
    assert _READY in log, log
    assert found is not None, log
    return found[1]
