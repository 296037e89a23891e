"""Tokens and sessions with a real database and a manual clock; and the admin token file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.auth.authenticator import (
    TOKEN_PATTERN,
    AdminTokenFileError,
    Authenticator,
    LastAdminError,
    create_admin_token_file,
    generate_token,
    read_admin_token_file,
)
from app.auth.credential import Credential, Principal
from app.auth.sessions import LIFETIME_MS, Sessions
from app.main import unix_millis
from app.store.audit import Origin
from app.store.database import make_store, migrate
from blocklist.model.claims import NewToken, Role
from blocklist.model.errors import NotFoundError, UnauthorizedError
from blocklist.model.node import PERMANENT
from blocklist.wire.audit import Way
from tests.integration.in_process import ManualClock
from tests.integration.process import url_of

pytestmark = pytest.mark.anyio

NOBODY = Origin(way=Way.API)


class TestAdminFile:
    def test_it_is_created_once_for_its_owner_only(self, tmp_path: Path) -> None:
        path = tmp_path / "token"
        assert create_admin_token_file(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert TOKEN_PATTERN.fullmatch(read_admin_token_file(path))
        before = path.read_text()
        assert not create_admin_token_file(path)
        assert path.read_text() == before

    @pytest.mark.parametrize("text", ["", "short", "x" * 31, "two words of more than thirty-two characters", "é" * 40])
    def test_an_invalid_token_is_refused_and_not_repeated(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "token"
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(AdminTokenFileError) as caught:
            read_admin_token_file(path)
        assert not text or text not in str(caught.value)

    @pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666])
    def test_a_file_that_all_users_can_access_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "token"
        create_admin_token_file(path)
        path.chmod(mode)
        with pytest.raises(AdminTokenFileError, match="chmod 600"):
            read_admin_token_file(path)

    def test_a_missing_folder_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(AdminTokenFileError, match="cannot be created"):
            create_admin_token_file(tmp_path / "missing" / "token")


class FakeStream:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.close_count = 0

    def close(self) -> None:
        self.close_count += 1


class AuthHarness:
    """Authenticators of two replicas with a database of their own and a manual clock."""

    def __init__(self, folder: Path) -> None:
        url = url_of(folder / "auth.db")
        migrate(url)
        self.clock = ManualClock()
        self.store = make_store(url, "harness", 2.0, unix_millis)
        asyncio.run(self.store.open())
        self.auth = Authenticator(self.store.tokens, self.clock, enabled=True)
        self.other_replica = Authenticator(self.store.tokens, self.clock, enabled=True)
        self.sessions = Sessions(self.auth, self.store.tokens, self.clock)

    def authenticate_cached(self, text: str) -> Credential | None:
        return self.auth.authenticate_cached(f"Bearer {text}".encode())

    async def create_token(
        self, access: Role = Role.ADMIN, end: int = PERMANENT, owners: tuple[str, ...] | None = None
    ) -> NewToken:
        return await self.auth.create("ann", access, end, NOBODY, owners=owners)


@pytest.fixture
def harness(tmp_path: Path) -> AuthHarness:
    return AuthHarness(tmp_path)


class TestAuthenticator:
    async def test_a_token_is_valid_from_its_creation_to_its_end(self, harness: AuthHarness) -> None:
        made = await harness.create_token(end=harness.clock.now + 10)
        credential = harness.authenticate_cached(made.text)
        assert credential is not None
        assert credential.principal == Principal("ann", Role.ADMIN)
        harness.clock.now += 9
        assert harness.authenticate_cached(made.text) is credential
        harness.clock.now += 1
        assert harness.authenticate_cached(made.text) is None
        assert not credential.is_valid(harness.clock.now)

    async def test_a_secret_with_one_wrong_character_is_refused(self, harness: AuthHarness) -> None:
        text = (await harness.create_token()).text
        for place in range(len(text)):
            wrong = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
            assert harness.authenticate_cached(wrong) is None, place
        for wrong in (text[:-1], text + "A", text + " x", "", "blocklist_"):
            assert harness.authenticate_cached(wrong) is None

    async def test_a_revoked_token_is_invalid_at_once_for_all_that_hold_it(self, harness: AuthHarness) -> None:
        await harness.create_token()
        made = await harness.create_token()
        credential, stream = harness.authenticate_cached(made.text), FakeStream()
        assert credential is not None
        credential.streams.add(stream)
        await harness.auth.revoke(made.token.id, NOBODY)
        assert not credential.use(harness.clock.now)
        assert harness.authenticate_cached(made.text) is None
        assert stream.close_count == 1
        with pytest.raises(UnauthorizedError):
            await harness.auth.authenticate_token(made.text.encode())

    async def test_another_replica_reads_new_and_revoked_tokens(self, harness: AuthHarness) -> None:
        await harness.create_token()
        made = await harness.create_token()
        header = f"Bearer {made.text}".encode()
        assert harness.other_replica.authenticate_cached(header) is None
        await harness.other_replica.load()
        assert harness.other_replica.authenticate_cached(header) is not None
        await harness.auth.revoke(made.token.id, NOBODY)
        await harness.other_replica.load()
        assert harness.other_replica.authenticate_cached(header) is None

    async def test_the_last_admin_cannot_be_revoked(self, harness: AuthHarness) -> None:
        first = await harness.create_token()
        await harness.create_token(Role.OPERATOR)
        ended = await harness.create_token(end=harness.clock.now + 1)
        harness.clock.now += 1
        with pytest.raises(LastAdminError):
            await harness.auth.revoke(first.token.id, NOBODY)
        await harness.auth.revoke(ended.token.id, NOBODY)
        await harness.create_token()
        await harness.auth.revoke(first.token.id, NOBODY)
        with pytest.raises(NotFoundError):
            await harness.auth.revoke("00000000", NOBODY)

    async def test_the_last_use_is_in_memory_until_it_is_saved(self, harness: AuthHarness) -> None:
        made = await harness.create_token()
        assert [token.last_used_at for token in await harness.auth.tokens()] == [None]
        harness.authenticate_cached(made.text)
        used = harness.clock.now
        assert [token.last_used_at for token in await harness.auth.tokens()] == [used]
        assert [stored.token.last_used_at for stored in await harness.store.tokens.tokens()] == [None]
        await harness.auth.save_used()
        assert [stored.token.last_used_at for stored in await harness.store.tokens.tokens()] == [used]
        await harness.store.tokens.save_used({made.token.id: used - 5})
        assert [stored.token.last_used_at for stored in await harness.store.tokens.tokens()] == [used]

    def test_neither_a_token_nor_a_cookie_is_in_the_database(self, harness: AuthHarness, tmp_path: Path) -> None:
        async def scenario() -> tuple[str, str]:
            text = (await harness.create_token()).text
            return text, (await harness.sessions.create(text, HERE))[0]

        text, cookie = asyncio.run(scenario())
        asyncio.run(harness.store.close())
        for file in tmp_path.iterdir():
            for secret in (text, text.split("_", 2)[2], cookie):
                assert secret.encode() not in file.read_bytes()


HERE = "10.0.0.9"
"""The address of the client."""


class TestSessions:
    async def test_a_session_is_found_by_its_cookie_on_any_replica(self, harness: AuthHarness) -> None:
        made = await harness.create_token(Role.OPERATOR)
        cookie, session = await harness.sessions.create(made.text, HERE)
        assert session.principal == Principal("ann", Role.OPERATOR)
        await harness.other_replica.load()
        elsewhere = Sessions(harness.other_replica, harness.store.tokens, harness.clock)
        found = await elsewhere.find(cookie, HERE)
        assert found is not None
        assert (found.principal, found.csrf) == (session.principal, session.csrf)
        assert await elsewhere.find(cookie + "x", HERE) is None
        assert await elsewhere.find("", HERE) is None

    async def test_each_session_has_its_own_csrf_value_which_cannot_be_derived_from_the_cookie(
        self, harness: AuthHarness
    ) -> None:
        """Every server on the host gets the cookie: a value that follows from it would be known to them, too."""
        made = await harness.create_token()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("secrets.token_urlsafe", lambda _: "the same cookie")
            (cookie, one) = await harness.sessions.create(made.text, HERE)
            await harness.sessions.end(cookie)
            (again, other) = await harness.sessions.create(made.text, HERE)
        assert cookie == again
        assert one.csrf != other.csrf

    async def test_its_cookie_is_worth_nothing_at_another_address(self, harness: AuthHarness) -> None:
        made = await harness.create_token()
        cookie, _ = await harness.sessions.create(made.text, HERE)
        assert await harness.sessions.find(cookie, "10.0.0.10") is None
        fresh = Sessions(harness.auth, harness.store.tokens, harness.clock)
        assert await fresh.find(cookie, "10.0.0.10") is None
        assert await fresh.find(cookie, HERE) is not None

    async def test_a_replica_that_does_not_know_its_token_yet_does_not_let_it_do_more(
        self, harness: AuthHarness
    ) -> None:
        """As behind a pooler without notifications."""
        await harness.other_replica.load()
        made = await harness.create_token(Role.OPERATOR, owners=("maintenance",))
        cookie, _ = await harness.sessions.create(made.text, HERE)
        elsewhere = Sessions(harness.other_replica, harness.store.tokens, harness.clock)
        early = await elsewhere.find(cookie, HERE)
        assert early is None or early.principal.owners == ("maintenance",)
        await harness.other_replica.load()
        found = await elsewhere.find(cookie, HERE)
        assert found is not None
        assert found.principal.owners == ("maintenance",)

    async def test_it_expires_after_12_hours_or_with_its_token(self, harness: AuthHarness) -> None:
        short, _ = await harness.sessions.create((await harness.create_token(end=harness.clock.now + 10)).text, HERE)
        long, _ = await harness.sessions.create((await harness.create_token()).text, HERE)
        harness.clock.now += 10
        assert await harness.sessions.find(short, HERE) is None
        harness.clock.now += LIFETIME_MS - 11
        assert await harness.sessions.find(long, HERE) is not None
        harness.clock.now += 1
        assert await harness.sessions.find(long, HERE) is None

    async def test_it_ends_by_itself_and_with_its_token(self, harness: AuthHarness) -> None:
        await harness.create_token()
        made = await harness.create_token()
        (one, _), (other, session) = [await harness.sessions.create(made.text, HERE) for _ in range(2)]
        await harness.sessions.end(one)
        assert await harness.sessions.find(one, HERE) is None
        assert await harness.sessions.find(other, HERE) is not None
        stream = FakeStream()
        session.streams.add(stream)
        await harness.auth.revoke(made.token.id, NOBODY)
        assert await harness.sessions.find(other, HERE) is None
        assert stream.close_count == 1

    async def test_an_invalid_token_creates_no_session(self, harness: AuthHarness) -> None:
        for text in ("", "x", generate_token().text, "a.b.c", "\ud800"):
            with pytest.raises(UnauthorizedError):
                await harness.sessions.create(text, HERE)
