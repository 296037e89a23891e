"""The client's token: where it comes from, when it is read again, and that it is never shown."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import httpx
import pytest

from blocklist.client.client import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import Watch
from blocklist.model.changes import Snapshot
from blocklist.model.claims import Role
from blocklist.model.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from blocklist.model.listener import ListenerRole, Registration
from blocklist.model.node import Backoff
from tests.integration.bodies import later
from tests.integration.databases import Databases
from tests.integration.in_process import in_process
from tests.integration.process import wait_until
from tests.integration.secured import SecuredInProcess, secured_in_process

WRONG = "blocklist_00000000_" + "A" * 43


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove tokens from the environment of the tests."""
    monkeypatch.delenv("BLOCKLIST_TOKEN", raising=False)
    monkeypatch.delenv("BLOCKLIST_TOKEN_FILE", raising=False)
    return monkeypatch


def test_a_token_is_an_argument_or_from_the_environment(
    secured: SecuredInProcess, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, reader = secured.url, secured.tokens[Role.READER]
    with BlocklistClient(url) as client, pytest.raises(UnauthorizedError) as error:
        client.snapshot()
    assert not error.value.given
    assert "BLOCKLIST_TOKEN_FILE" in str(error.value)
    with BlocklistClient(url, token=reader) as client:
        assert client.snapshot().nodes is not None
    file = tmp_path / "token"
    file.write_text(f"{reader}\n")
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    with BlocklistClient(url) as client:
        client.snapshot()
    environment.setenv("BLOCKLIST_TOKEN", WRONG)
    with BlocklistClient(url) as client, pytest.raises(UnauthorizedError) as error:
        client.snapshot()
    assert error.value.given
    with BlocklistClient(url, token=reader) as client:
        client.snapshot()


def test_a_request_beyond_the_role_is_forbidden(secured: SecuredInProcess) -> None:
    with BlocklistClient(secured.url, token=secured.tokens[Role.LISTENER]) as client:
        with pytest.raises(ForbiddenError, match="operator"):
            client.block("a", "disk")
        with pytest.raises(ForbiddenError, match="admin"):
            client.tokens()


def test_tokens_are_created_listed_and_revoked(secured: SecuredInProcess) -> None:
    end = int(later(3600))
    with BlocklistClient(secured.url, token=secured.admin) as client:
        created = client.create_token("of-a-client", Role.OPERATOR, end=end)
        assert (created.token.name, created.token.role, created.token.end) == ("of-a-client", Role.OPERATOR, end)
        with BlocklistClient(secured.url, token=created.text) as other:
            other.block("by-a-client", "disk")
        (listed,) = [token for token in client.tokens() if token.id == created.token.id]
        assert listed.created_by == "admin"
        assert listed.last_used_at is not None
        client.revoke_token(created.token.id)
        (listed,) = [token for token in client.tokens() if token.id == created.token.id]
        assert listed.revoked_at is not None
        with pytest.raises(NotFoundError):
            client.revoke_token("00000000")
        with pytest.raises(InvalidError):
            client.create_token("a b", Role.READER)
        with pytest.raises(InvalidError):
            client.create_token("late", Role.READER, end=1)
        assert client.create_token("endless", Role.READER).token.end == 2**63 - 1


def test_revoking_the_last_admin_token_is_a_conflict(tmp_path: Path, databases: Databases) -> None:
    with secured_in_process(tmp_path, databases) as secured:
        text = secured.tokens[Role.ADMIN]
    with (
        in_process(**databases.settings(tmp_path), auth="tokens") as service,
        BlocklistClient(service.url, token=text) as client,
    ):
        (token,) = [token for token in client.tokens() if token.role is Role.ADMIN]
        with pytest.raises(ConflictError, match="last"):
            client.revoke_token(token.id)


def test_a_changed_token_file_is_read_again(
    secured: SecuredInProcess, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (secured.make_token(Role.LISTENER) for _ in range(2))
    file = tmp_path / "token"
    file.write_text(old["token"])
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    url, backoff = secured.url, Backoff(initial=0.05, cap=0.2)
    registration = Registration(id="rotating", role=ListenerRole.JOB_MASTER, session="1")
    session = ListenerSession(url, registration, interval=0.1, backoff=backoff)
    with BlocklistClient(url) as client, Watch(url, backoff=backoff) as watch:
        assert isinstance(next(watch), Snapshot)
        client.snapshot()
        wait_until(lambda: session.registered)
        with secured.client(secured.admin) as admin:
            admin.delete(f"/tokens/{old['id']}").raise_for_status()
        with pytest.raises(UnauthorizedError):
            client.snapshot()
        wait_until(lambda: session.last_error is not None)
        file.write_text(new["token"])
        client.snapshot()
        wait_until(lambda: session.registered and session.last_error is None)
        with BlocklistClient(url, token=secured.admin) as other:
            other.block("seen-after-rotation", "disk")
        assert next(watch).node.id == "seen-after-rotation"  # type: ignore[union-attr]
    session.close()


@pytest.mark.parametrize("text", [None, "", "two words", "é"])
def test_a_token_file_without_a_token_is_a_temporary_error(
    secured: SecuredInProcess, environment: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    with BlocklistClient(secured.url) as client:
        with pytest.raises(UnavailableError, match="token file"):
            client.snapshot()
        file.write_text(secured.tokens[Role.READER])
        client.snapshot()


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "é", "a\x00b", 'quo"te'])
def test_a_malformed_token_is_rejected_at_once_and_not_quoted(text: str) -> None:
    for make in (
        lambda: BlocklistClient("http://127.0.0.1:1", token=text),
        lambda: Watch("http://127.0.0.1:1", token=text),
    ):
        with pytest.raises(InvalidError) as error:
            make()
        assert text not in str(error.value)


def test_a_token_is_never_shown(secured: SecuredInProcess, caplog: pytest.LogCaptureFixture) -> None:
    text = secured.tokens[Role.LISTENER]
    outputs: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for url, token in ((secured.url, text), ("http://127.0.0.1:1", text), (secured.url, WRONG)):
            client = BlocklistClient(url, token=token)
            for act in (client.tokens, lambda client=client: client.block("a", "x"), client.snapshot):
                try:
                    act()
                except (ForbiddenError, UnauthorizedError, UnavailableError) as error:
                    outputs += [repr(error), "".join(traceback.format_exception(error))]
            outputs += [repr(client), repr(vars(client))]
            client.close()
    outputs += [caplog.text]
    assert len(outputs) > 6
    for secret in (text, WRONG):
        assert not [output for output in outputs if secret in output]


def test_a_token_is_not_sent_to_a_redirect(secured: SecuredInProcess) -> None:
    """The client follows no redirect: a 3xx is not a response of the service."""
    with BlocklistClient(secured.url, token=secured.admin) as client:
        assert not client._http.follow_redirects
    assert httpx.Client().follow_redirects is False
