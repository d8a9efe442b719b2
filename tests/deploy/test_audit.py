from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.dependencies import lock

if TYPE_CHECKING:
    from collections.abc import Iterator

#: In the format of https://ossf.github.io/osv-schema/.
ADVISORY = {
    "id": "PYSEC-0000-1",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "summary": "made up",
    "details": "made up",
    "affected": [{"package": {"name": "click", "ecosystem": "PyPI"}}],
}


@contextmanager
def vulnerabilities(*names: str) -> Iterator[tuple[str, set[str]]]:
    """Stand in for OSV's database; yield its address and the set of packages it was asked for."""
    asked = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = query["package"]["name"]
            asked.add(f"{name}=={query['version']}")
            answer = json.dumps({"vulns": [ADVISORY]} if name in names else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
        finally:
            server.shutdown()
            thread.join()


def audit(address: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `make audit` with another database, in the environment that is there (-o setup)."""
    options = f"--vulnerability-service=osv --osv-url={address} --cache-dir={cache}"
    return subprocess.run(
        [
            *("make", "-s", "-C", lock.ROOT, "-o", "setup", "audit"),
            *(f"BIN={Path(sys.executable).parent}", f"AUDIT={options} --progress-spinner=off"),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
    )


def test_every_locked_dependency_is_looked_up(tmp_path: Path) -> None:
    with vulnerabilities() as (address, asked):
        done = audit(address, tmp_path)
    assert done.returncode == 0, done.stderr
    locked = {f"{one.name}=={one.version}" for one in lock.read(lock.GRPC)}
    # Of the lock, pip-audit asks for what this Python needs; that package is of older ones alone.
    assert {one for one in locked - asked if not one.startswith("typing-extensions==")} == set()
    assert asked <= locked


def test_a_known_vulnerability_fails_the_audit(tmp_path: Path) -> None:
    with vulnerabilities("click") as (address, _):
        done = audit(address, tmp_path)
    assert done.returncode != 0
    assert "PYSEC-0000-1" in done.stdout


def test_an_audit_that_reaches_no_database_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert audit(f"http://127.0.0.1:{port}/v1/query", tmp_path).returncode != 0
