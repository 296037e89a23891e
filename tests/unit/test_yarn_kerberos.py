"""--kerberos without its library, and a login that the ResourceManager rejects. SPNEGO is tested in tests/yarn."""

from __future__ import annotations

import sys
import types

import httpx
import pytest

from blocklist.managers.command import Stopping
from blocklist.managers.yarn.resource_manager import Access, Connection, RejectedError, kerberos_auth
from blocklist.model.errors import InvalidError
from tests.integration.fake_servers import fake_server, http_response

UNAUTHORIZED = http_response(
    b'{"message": "Authentication required", "status": "401"}', "401 Unauthorized", "WWW-Authenticate: Negotiate"
)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        pytest.param("httpx_gssapi", "httpx_gssapi", id="the library"),
        pytest.param("gssapi", "No module named 'gssapi'", id="what it is compiled from"),
    ],
)
def test_without_the_library_the_error_says_what_is_missing_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, reason: str
) -> None:
    if missing == "httpx_gssapi":
        monkeypatch.setitem(sys.modules, "httpx_gssapi", None)
    else:
        monkeypatch.setattr("importlib.import_module", fail_without_gssapi)
    with pytest.raises(InvalidError) as raised:
        kerberos_auth()
    sentence = str(raised.value)
    assert sentence.startswith("--kerberos needs the package httpx-gssapi, which cannot be loaded (")
    assert reason in sentence
    assert "pip install httpx-gssapi" in sentence
    assert "apt-get install gcc python3-dev libkrb5-dev" in sentence


def test_the_server_must_prove_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, object] = {}
    library = types.ModuleType("httpx_gssapi")
    library.REQUIRED = 1  # type: ignore[attr-defined]
    library.HTTPSPNEGOAuth = lambda **options: made.update(options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "httpx_gssapi", library)
    kerberos_auth()
    assert made == {"mutual_authentication": 1}


def test_a_rejected_login_says_what_to_do() -> None:
    without = pytest.raises(
        RejectedError,
        match=r"with 401: Authentication required\. It wants a login: use --kerberos, after kinit, or --user",
    )
    with fake_server(UNAUTHORIZED) as server, without:
        Connection(server.url, Access(user="ann"), Stopping(), 60).get("/info")
    failed = pytest.raises(RejectedError, match="Kerberos gave no login: run klist, then kinit, or name a keytab")
    with fake_server(UNAUTHORIZED) as server, failed:
        Connection(server.url, Access(auth=httpx.Auth()), Stopping(), 60).get("/info")


def fail_without_gssapi(_: str) -> None:
    raise ModuleNotFoundError("No module named 'gssapi'")
