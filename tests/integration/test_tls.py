"""HTTPS in the service itself."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.server import tls_context
from app.settings import Settings, SettingsError
from blocklist import BlocklistClient
from blocklist.model.errors import UnavailableError
from tests.integration.process import ServiceProcess, run_app, wait_until
from tests.integration.raw_http import read_response, request
from tests.integration.test_start import assert_refused, settings_for

NODE = {"action": "MARK_BLOCKED", "cause": "Hot machine"}


class TlsProcess(ServiceProcess):
    """A service with its own certificate."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.cert, self.key = certificate(folder)
        super().__init__(folder, tls_cert=str(self.cert), tls_key=str(self.key), **settings)
        self.url = self.url.replace("http:", "https:")

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=self.trust())

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert)

    def _ready(self) -> bool:
        assert self._running().poll() is None, self.log()
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False


def certificate(folder: Path, name: str = "service", password: bytes | None = None) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(cert.public_bytes(pem))
    key_file.write_bytes(key.private_bytes(pem, pkcs8, hidden))
    return cert_file, key_file


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "ordinary"])
def tls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[TlsProcess]:
    short = {"app.http.connection.HEADER_SECONDS": 1.0}
    process = TlsProcess(tmp_path_factory.mktemp("tls"), fast_path=request.param, constants=short)
    shutil.copy(migrated, process.database)
    with process:
        yield process


def test_requests_and_watches_use_tls(tls: TlsProcess) -> None:
    with tls.client() as client:
        put = client.put("/blocklist/nodes/a", json=NODE)
        assert put.status_code in {201, 409}
        for _ in range(3):
            response = client.get("/blocklist")
            assert "a" in response.json()
            assert response.headers["strict-transport-security"] == "max-age=31536000"
        with client.stream("GET", "/blocklist/watch") as stream:
            assert "event: snapshot" in "".join(line for line, _ in zip(stream.iter_lines(), range(4), strict=False))


def test_an_incomplete_request_gets_408(tls: TlsProcess) -> None:
    with (
        socket.create_connection(("127.0.0.1", tls.port), 30) as plain,
        tls.trust().wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(request("/blocklist")[:20])
        assert read_response(stream).status == 408


def test_a_handshake_has_the_time_of_a_head(tls: TlsProcess) -> None:
    with ExitStack() as stack:
        silent = {}
        for part in (0, 1, 40, 10_000):
            silent[part] = stack.enter_context(socket.create_connection(("127.0.0.1", tls.port), 20))
            silent[part].sendall(client_hello(tls)[:part])
        # Each to its end: a connection that stays open fails the test.
        answered = {part: list(iter(partial(connection.recv, 10_000), b"")) for part, connection in silent.items()}
    assert [part for part in silent if answered[part]] == [10_000], "the service has answered only a whole hello"


def client_hello(tls: TlsProcess) -> bytes:
    """What a client sends first."""
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        tls.trust().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


def test_plain_http_is_refused(tls: TlsProcess) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(tls.url.replace("https:", "http:") + "/blocklist", trust_env=False)


def test_a_client_with_http_instead_of_https_says_so(tls: TlsProcess) -> None:
    with BlocklistClient(tls.url.replace("https:", "http:")) as client, pytest.raises(UnavailableError) as error:
        client.snapshot()
    assert "If the server uses TLS, its URL begins with https://." in error.value.detail


def test_a_client_trusts_the_authorities_of_the_environment(tls: TlsProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with BlocklistClient(tls.url) as client, pytest.raises(UnavailableError, match="certificate verify failed"):
        client.snapshot()
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.cert))
    with BlocklistClient(tls.url) as client:
        client.snapshot()


def test_a_client_with_https_instead_of_http_says_so(listener_service: ServiceProcess) -> None:
    url = listener_service.url.replace("http:", "https:")
    with BlocklistClient(url) as client, pytest.raises(UnavailableError) as error:
        client.snapshot()
    assert "the server there does not use TLS; try http:// instead of https://" in error.value.detail


def test_tls_is_1_2_or_later(tls: TlsProcess) -> None:
    context = tls.trust()
    assert context.minimum_version <= ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", tls.port), 30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        assert connection.version() in {"TLSv1.2", "TLSv1.3"}


def presented(service: ServiceProcess) -> str:
    """The certificate that a new connection is shown."""
    return ssl.get_server_certificate(("127.0.0.1", service.port), timeout=30)


def test_a_renewed_certificate_is_presented_without_a_restart(tmp_path: Path, migrated: Path) -> None:
    quick = {"app.secret_files.CHECK_SECONDS": 0.05}
    process = TlsProcess(tmp_path, constants=quick)
    shutil.copy(migrated, process.database)
    (tmp_path / "renewed").mkdir()
    cert, key = certificate(tmp_path / "renewed")
    with process, process.client() as before:
        first = presented(process)
        assert before.put("/blocklist/nodes/a", json=NODE).status_code == 201
        shutil.copy(cert, process.cert)
        wait_until(lambda: "the certificate cannot be renewed; the one before stays in force" in process.log())
        assert "key values mismatch" in process.log()
        assert presented(process) == first, "half of a pair is not used"
        shutil.copy(key, process.key)
        wait_until(lambda: presented(process) != first)
        assert presented(process) == cert.read_text()
        assert "a" in before.get("/blocklist").json(), "its connection goes on"
        with process.client() as after:
            assert "a" in after.get("/blocklist").json()
        process.cert.write_text("half of")
        wait_until(lambda: process.log().count("cannot be renewed") == 2)
        process.key.unlink()
        wait_until(lambda: process.log().count("cannot be renewed") == 3)
        assert presented(process) == cert.read_text()


def test_unusable_files_stop_the_start(tmp_path: Path, migrated: Path) -> None:
    cert, key = certificate(tmp_path)
    other = certificate(tmp_path, "other")[1]
    locked = certificate(tmp_path, "locked", b"secret")
    missing = tmp_path / "missing"
    for files, sentence in {
        (str(cert), ""): "Set both BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY, or neither.",
        ("", str(key)): "Set both BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY, or neither.",
        (str(missing), str(key)): f"BLOCKLIST_TLS_CERT {missing} cannot be read: No such file or directory.",
        (str(cert), str(missing)): f"BLOCKLIST_TLS_KEY {missing} cannot be read: No such file or directory.",
        (str(cert), str(other)): "are not a certificate and its key: key values mismatch.",
        (str(key), str(key)): "are not a certificate and its key:",
        tuple(map(str, locked)): "The key in BLOCKLIST_TLS_KEY is encrypted",
    }.items():
        with pytest.raises(SettingsError, match=re.escape(sentence)):
            tls_context(Settings(tls_cert=files[0], tls_key=files[1]))
    done = run_app(env=settings_for(migrated, tls_cert=str(cert)))
    assert_refused(done, "Set both BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY, or neither.")
