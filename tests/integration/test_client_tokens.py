"""The client with tokens: where they come from, when they change, and that they are never shown."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import httpx
import pytest

from blocklist.client.client import BlocklistClient
from blocklist.client.listener_session import Membership
from blocklist.client.watch import Watch
from blocklist.model.backoff import Backoff
from blocklist.model.changes import Snapshot
from blocklist.model.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from blocklist.model.listener import Registration, Role
from blocklist.model.roles import Access
from tests.integration.bodies import later
from tests.integration.databases import Databases
from tests.integration.guarded import Guarded, guarding
from tests.integration.process import ServiceProcess, wait_until

WRONG = "blocklist_00000000_" + "A" * 43


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No token of whoever runs the tests."""
    monkeypatch.delenv("BLOCKLIST_TOKEN", raising=False)
    monkeypatch.delenv("BLOCKLIST_TOKEN_FILE", raising=False)
    return monkeypatch


def test_a_token_is_given_or_found_in_the_environment(
    guarded: Guarded, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, reader = guarded.process.url, guarded.tokens[Access.READER]
    with BlocklistClient(url) as client, pytest.raises(UnauthorizedError) as caught:
        client.snapshot()
    assert not caught.value.given
    with BlocklistClient(url, token=reader) as client:
        assert client.snapshot().nodes is not None
    file = tmp_path / "token"
    file.write_text(f"{reader}\n")
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    with BlocklistClient(url) as client:
        client.snapshot()
    environment.setenv("BLOCKLIST_TOKEN", WRONG)
    with BlocklistClient(url) as client, pytest.raises(UnauthorizedError) as caught:
        client.snapshot()
    assert caught.value.given
    with BlocklistClient(url, token=reader) as client:
        client.snapshot()


def test_what_the_role_does_not_allow_is_forbidden(guarded: Guarded) -> None:
    with BlocklistClient(guarded.process.url, token=guarded.tokens[Access.LISTENER]) as client:
        with pytest.raises(ForbiddenError, match="operator"):
            client.block("a", "disk")
        with pytest.raises(ForbiddenError, match="admin"):
            client.tokens()


def test_tokens_are_made_listed_and_revoked(guarded: Guarded) -> None:
    end = int(later(3600))
    with BlocklistClient(guarded.process.url, token=guarded.admin) as client:
        made = client.create_token("of-a-client", Access.OPERATOR, end=end)
        assert (made.token.name, made.token.access, made.token.end) == ("of-a-client", Access.OPERATOR, end)
        with BlocklistClient(guarded.process.url, token=made.text) as other:
            other.block("by-a-client", "disk")
        (found,) = [token for token in client.tokens() if token.id == made.token.id]
        assert found.created_by == "admin"
        assert found.last_used_at is not None
        client.revoke_token(made.token.id)
        (found,) = [token for token in client.tokens() if token.id == made.token.id]
        assert found.revoked_at is not None
        with pytest.raises(NotFoundError):
            client.revoke_token("00000000")
        with pytest.raises(InvalidError):
            client.create_token("a b", Access.READER)
        with pytest.raises(InvalidError):
            client.create_token("late", Access.READER, end=1)
        assert client.create_token("endless", Access.READER).token.end == 2**63 - 1


def test_the_last_admin_is_a_conflict(tmp_path: Path, databases: Databases) -> None:
    with guarding(tmp_path, databases) as guarded:
        text = guarded.tokens[Access.ADMIN]
    with ServiceProcess(tmp_path, auth="tokens") as process, BlocklistClient(process.url, token=text) as client:
        (own,) = [token for token in client.tokens() if token.access is Access.ADMIN]
        with pytest.raises(ConflictError, match="last"):
            client.revoke_token(own.id)


def test_a_token_file_that_changes_is_read_again(
    guarded: Guarded, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (guarded.make(Access.LISTENER) for _ in range(2))
    file = tmp_path / "token"
    file.write_text(old["token"])
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    url, quick = guarded.process.url, Backoff(first=0.05, cap=0.2)
    registration = Registration(id="rotating", role=Role.JOB_MASTER, session="1")
    member = Membership(url, registration, interval=0.1, backoff=quick)
    with BlocklistClient(url) as client, Watch(url, backoff=quick) as watch:
        assert isinstance(next(watch), Snapshot)
        client.snapshot()
        wait_until(lambda: member.registered)
        with guarded.client(guarded.admin) as admin:
            admin.delete(f"/tokens/{old['id']}").raise_for_status()
        with pytest.raises(UnauthorizedError):
            client.snapshot()
        wait_until(lambda: member.last_error is not None)
        file.write_text(new["token"])
        client.snapshot()
        wait_until(lambda: member.registered and member.last_error is None)
        with BlocklistClient(url, token=guarded.admin) as other:
            other.block("seen-after-rotation", "disk")
        assert next(watch).node.id == "seen-after-rotation"  # type: ignore[union-attr]
    member.close()


@pytest.mark.parametrize("text", [None, "", "two words", "é"])
def test_a_file_without_a_token_is_trouble_that_may_pass(
    guarded: Guarded, environment: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    environment.setenv("BLOCKLIST_TOKEN_FILE", str(file))
    with BlocklistClient(guarded.process.url) as client:
        with pytest.raises(UnavailableError, match="token file"):
            client.snapshot()
        file.write_text(guarded.tokens[Access.READER])
        client.snapshot()


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "é", "a\x00b", 'quo"te'])
def test_what_could_be_no_token_is_refused_at_once_and_not_repeated(text: str) -> None:
    for make in (
        lambda: BlocklistClient("http://127.0.0.1:1", token=text),
        lambda: Watch("http://127.0.0.1:1", token=text),
    ):
        with pytest.raises(InvalidError) as caught:
            make()
        assert text not in str(caught.value)


def test_a_token_is_never_shown(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    text = guarded.tokens[Access.LISTENER]
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for url, token in ((guarded.process.url, text), ("http://127.0.0.1:1", text), (guarded.process.url, WRONG)):
            client = BlocklistClient(url, token=token)
            for act in (client.tokens, lambda client=client: client.block("a", "x"), client.snapshot):
                try:
                    act()
                except (ForbiddenError, UnauthorizedError, UnavailableError) as error:
                    shown += [repr(error), "".join(traceback.format_exception(error))]
            shown += [repr(client), repr(vars(client))]
            client.close()
    shown += [caplog.text]
    assert len(shown) > 6
    for secret in (text, WRONG):
        assert not [one for one in shown if secret in one]


def test_a_token_does_not_go_where_the_service_redirects_to(guarded: Guarded) -> None:
    """The client follows nobody: a 3xx is no answer of the service."""
    with BlocklistClient(guarded.process.url, token=guarded.admin) as client:
        assert not client._http.follow_redirects
    assert httpx.Client().follow_redirects is False
