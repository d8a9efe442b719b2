from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from deploy.image import health
from tests.fakes import certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def listener(status: int, said: str, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer `/healthz` on a port of 127.0.0.1, over TLS where a context is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()
            self.wfile.write(f"{said}\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def configured(directory: Path, text: str) -> Path:
    file = directory / "config.yaml"
    file.write_text(f"agent:\n  metrics: {{{text}}}\n")
    return file


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("127.0.0.1", 200, "ok"),
        ("0.0.0.0", 200, "ok"),  # noqa: S104 - of a configuration
        ("127.0.0.1", 503, "one action has been running for 61 s"),
        ("127.0.0.1", 404, "no"),
    ],
)
def test_the_check_is_what_healthz_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, status: int, said: str
) -> None:
    with listener(status, said) as port:
        code = health.main(configured(tmp_path, f"address: {address}, port: {port}"))
    assert (code, capsys.readouterr().out) == (int(status != 200), f"{said}\n")


def test_a_listener_with_tls_is_asked_over_tls(tmp_path: Path) -> None:
    pair = certificate.write_certificate(tmp_path / "pair.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    with listener(200, "ok", context) as port:
        text = f"port: {port}, tlsCertificate: {pair}, tlsKey: {pair}"
        assert health.main(configured(tmp_path, text)) == 0


def test_an_absent_agent_is_not_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert health.main(configured(tmp_path, f"port: {port}")) == 1
    assert "/healthz cannot be asked: " in capsys.readouterr().out


def test_an_agent_that_never_answers_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "TIMEOUT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert health.main(configured(tmp_path, f"port: {silent.getsockname()[1]}")) == 1
    assert "timed out" in capsys.readouterr().out


def test_a_bad_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(tmp_path / "config.yaml") == 1
    assert health.main(configured(tmp_path, "prot: 1")) == 1
    assert "prot" in capsys.readouterr().out
