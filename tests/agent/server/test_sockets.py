from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from agent.server.errors import StartError
from agent.server.sockets import (
    Address,
    group_id,
    open_tcp,
    open_unix,
    tls_context,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_socket_is_for_its_owner_and_group_alone_and_the_umask_is_as_before(
    tmp_path: Path,
) -> None:
    before = os.umask(0o027)
    try:
        listening = open_unix(tmp_path / "a.sock", None)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert listening.path.stat().st_mode & 0o777 == 0o660
    listening.close()
    assert not listening.path.exists()
    listening.close()  # nothing is there


def test_the_agents_own_group_needs_no_chown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", forbidden)
    group = tmp_path.stat().st_gid
    listening = open_unix(tmp_path / "a.sock", group)
    listening.close()
    with pytest.raises(StartError, match="Operation not permitted"):
        open_unix(tmp_path / "a.sock", group + 1)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_without_a_listener_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    open_unix(path, None).close()


def test_a_socket_in_use_is_left_alone_and_said_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    first = open_unix(path, None)
    with pytest.raises(StartError) as rejected:
        open_unix(path, None)
    assert str(rejected.value) == (
        f"socket {path}: in use; stop the agent that uses it, or name another path"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    first.close()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(str(path))
        busy.listen(0)
        client.connect(str(path))
        with pytest.raises(StartError, match="in use"):
            open_unix(path, None)
        assert path.exists()


@pytest.mark.parametrize(
    ("obstruct", "name", "said"),
    [
        (lambda path: path.write_text("mine"), "a.sock", "a file of that name exists"),
        (lambda path: path.symlink_to("elsewhere"), "a.sock", "a file of that name exists"),
        (lambda path: path.parent.rmdir(), "a.sock", "No such file or directory; create the dir"),
        (lambda path: path.parent.chmod(0o777), "a.sock", r"by others \(mode 0777\); close it"),
        (lambda path: path.write_text("mine"), "a" * 120, "longer than 107 bytes"),
    ],
)
def test_a_place_where_no_socket_may_be_is_left_as_it_is_and_said(
    tmp_path: Path, obstruct: Callable[[Path], object], name: str, said: str
) -> None:
    path = tmp_path / "directory" / name
    path.parent.mkdir()
    obstruct(path)
    with pytest.raises(StartError, match=said):
        open_unix(path, None)
    assert not path.is_file() or path.read_text() == "mine"


def test_a_socket_that_another_process_put_there_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    first = open_unix(path, None)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        first.close()
        assert path.exists()


def test_a_group_is_found_or_named_with_the_remedy() -> None:
    assert group_id("root") == 0
    with pytest.raises(StartError, match="groupadd --system no-such-group"):
        group_id("no-such-group")


def test_a_port_in_use_is_said_in_a_line() -> None:
    with open_tcp(Address("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartError) as rejected:
            open_tcp(Address("127.0.0.1", port))
    assert str(rejected.value) == (
        f"metrics listener 127.0.0.1:{port}: Address already in use; "
        "stop what listens there, or name another address"
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (Address("192.0.2.1", 0), "Cannot assign requested address"),
        (Address("not an address", 1), "name an address of this machine"),
    ],
)
def test_an_address_of_another_machine_or_none_is_rejected(address: Address, said: str) -> None:
    with pytest.raises(StartError, match=said):
        open_tcp(address)


def test_ipv6_addresses_are_written_in_brackets_and_without_a_certificate_there_is_no_tls() -> None:
    assert str(Address("::1", 9464)) == "[::1]:9464"
    assert tls_context(Address("127.0.0.1", 0)) is None


def test_a_bad_certificate_is_said_in_a_line(tmp_path: Path) -> None:
    bad = tmp_path / "cert.pem"
    bad.write_text("nothing")
    with pytest.raises(StartError, match=r"TLS certificate .*cert\.pem: .*; name a PEM"):
        tls_context(Address("127.0.0.1", 0, bad, bad))
    with pytest.raises(StartError, match="No such file or directory"):
        tls_context(Address("127.0.0.1", 0, tmp_path / "none", tmp_path / "none"))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_a_key_that_others_can_read_or_write_is_rejected(certificate: Path, mode: int) -> None:
    key = certificate.with_name(f"key-{mode:o}.pem")
    key.write_bytes(certificate.read_bytes())
    key.chmod(mode)
    with pytest.raises(StartError, match=rf"TLS key .*{key.name}.*\(mode 0{mode:o}\); close it"):
        tls_context(Address("127.0.0.1", 0, certificate, key))


def test_a_key_that_its_group_can_read_is_fine_and_gives_tls_of_today(certificate: Path) -> None:
    key = certificate.with_name("key-of-a-group.pem")
    key.write_bytes(certificate.read_bytes())
    key.chmod(0o640)
    context = tls_context(Address("127.0.0.1", 0, certificate, key))
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_the_password_of_a_key_is_not_asked_for(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def load(*_: object, password: Callable[[], str]) -> None:
        asked.append(password())
        raise ssl.SSLError(1, "bad decrypt")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(ssl, "create_default_context", lambda _: context)
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    with pytest.raises(StartError, match="unencrypted key"):
        tls_context(Address("127.0.0.1", 0, certificate, certificate))
    assert asked == [""]
