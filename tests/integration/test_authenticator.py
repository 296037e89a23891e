"""Tokens and sessions on a real database, on a clock that is moved; and the admin's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.auth import admin_token_file
from app.auth.admin_token_file import AdminFileError
from app.auth.authenticator import Authenticator
from app.auth.credential import Credential
from app.auth.principal import Principal
from app.auth.sessions import LASTS, Sessions
from app.auth.tokens import TOKEN, LastAdminError, make_token
from app.store.migration import migrate
from app.store.store import make_store
from blocklist.model.errors import NotFoundError, UnauthorizedError
from blocklist.model.node import PERMANENT
from blocklist.model.roles import Access, NewToken
from tests.integration.in_process import ManualClock
from tests.integration.process import url_of


class TestAdminFile:
    def test_it_is_made_for_its_owner_only_and_once(self, tmp_path: Path) -> None:
        path = tmp_path / "token"
        assert admin_token_file.make(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert TOKEN.fullmatch(admin_token_file.read(path))
        before = path.read_text()
        assert not admin_token_file.make(path)
        assert path.read_text() == before

    @pytest.mark.parametrize("text", ["", "short", "x" * 31, "two words of more than thirty-two characters", "é" * 40])
    def test_what_is_no_token_is_refused_and_not_repeated(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "token"
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(AdminFileError) as caught:
            admin_token_file.read(path)
        assert not text or text not in str(caught.value)

    @pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666])
    def test_a_file_for_anybody_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "token"
        admin_token_file.make(path)
        path.chmod(mode)
        with pytest.raises(AdminFileError, match="chmod 600"):
            admin_token_file.read(path)

    def test_a_folder_that_is_missing_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(AdminFileError, match="cannot be made"):
            admin_token_file.make(tmp_path / "missing" / "token")


class Cut:
    """A stream that knows that it was cut."""

    def __init__(self) -> None:
        self.times = 0

    def cut(self) -> None:
        self.times += 1


class Desk:
    """An authenticator on a database of its own, on a clock that is moved."""

    def __init__(self, folder: Path) -> None:
        url = url_of(folder / "auth.db")
        migrate(url)
        self.clock = ManualClock()
        self.store = make_store(url, "desk", 2.0)
        self.auth = Authenticator(self.store.tokens, self.clock, enabled=True)
        self.other = Authenticator(self.store.tokens, self.clock, enabled=True)
        self.sessions = Sessions(self.auth, self.store.tokens, self.clock)

    def known(self, text: str) -> Credential | None:
        return self.auth.known(f"Bearer {text}".encode())

    async def make(self, access: Access = Access.ADMIN, end: int = PERMANENT) -> NewToken:
        return await self.auth.create("ann", access, end, None)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class TestAuthenticator:
    def test_a_token_is_known_from_its_making_to_its_end(self, desk: Desk) -> None:
        async def scenario() -> None:
            made = await desk.make(end=desk.clock.now + 10)
            credential = desk.known(made.text)
            assert credential is not None
            assert credential.principal == Principal("ann", Access.ADMIN)
            desk.clock.now += 9
            assert desk.known(made.text) is credential
            desk.clock.now += 1
            assert desk.known(made.text) is None
            assert not credential.good(desk.clock.now)

        asyncio.run(scenario())

    def test_a_secret_that_is_wrong_by_one_character_opens_nothing(self, desk: Desk) -> None:
        async def scenario() -> None:
            text = (await desk.make()).text
            for place in range(len(text)):
                wrong = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
                assert desk.known(wrong) is None, place
            for wrong in (text[:-1], text + "A", text + " x", "", "blocklist_"):
                assert desk.known(wrong) is None

        asyncio.run(scenario())

    def test_what_is_revoked_ends_at_once_for_all_that_keep_it(self, desk: Desk) -> None:
        async def scenario() -> None:
            await desk.make()
            made = await desk.make()
            credential, stream = desk.known(made.text), Cut()
            assert credential is not None
            credential.streams.add(stream)
            await desk.auth.revoke(made.token.id, "bob")
            assert not credential.admits(desk.clock.now)
            assert desk.known(made.text) is None
            assert stream.times == 1
            with pytest.raises(UnauthorizedError):
                await desk.auth.verify_text(made.text.encode())

        asyncio.run(scenario())

    def test_another_replica_learns_of_it_when_it_looks(self, desk: Desk) -> None:
        async def scenario() -> None:
            await desk.make()
            made = await desk.make()
            header = f"Bearer {made.text}".encode()
            assert desk.other.known(header) is None
            await desk.other.load()
            assert desk.other.known(header) is not None
            await desk.auth.revoke(made.token.id, None)
            await desk.other.load()
            assert desk.other.known(header) is None

        asyncio.run(scenario())

    def test_the_last_admin_stays(self, desk: Desk) -> None:
        async def scenario() -> None:
            first = await desk.make()
            await desk.make(Access.OPERATOR)
            ended = await desk.make(end=desk.clock.now + 1)
            desk.clock.now += 1
            with pytest.raises(LastAdminError):
                await desk.auth.revoke(first.token.id, None)
            await desk.auth.revoke(ended.token.id, None)
            await desk.make()
            await desk.auth.revoke(first.token.id, None)
            with pytest.raises(NotFoundError):
                await desk.auth.revoke("00000000", None)

        asyncio.run(scenario())

    def test_the_last_use_is_kept_in_memory_and_written_later(self, desk: Desk) -> None:
        async def scenario() -> None:
            made = await desk.make()
            assert [token.last_used_at for token in await desk.auth.tokens()] == [None]
            desk.known(made.text)
            used = desk.clock.now
            assert [token.last_used_at for token in await desk.auth.tokens()] == [used]
            assert [stored.token.last_used_at for stored in await desk.store.tokens.tokens()] == [None]
            await desk.auth.save_used()
            assert [stored.token.last_used_at for stored in await desk.store.tokens.tokens()] == [used]
            await desk.store.tokens.save_used({made.token.id: used - 5})
            assert [stored.token.last_used_at for stored in await desk.store.tokens.tokens()] == [used]

        asyncio.run(scenario())

    def test_neither_a_token_nor_a_cookie_is_in_the_database(self, desk: Desk, tmp_path: Path) -> None:
        async def scenario() -> tuple[str, str]:
            text = (await desk.make()).text
            return text, (await desk.sessions.begin(text))[0]

        text, cookie = asyncio.run(scenario())
        asyncio.run(desk.store.close())
        for file in tmp_path.iterdir():
            for secret in (text, text.split("_", 2)[2], cookie):
                assert secret.encode() not in file.read_bytes()


class TestSessions:
    def test_a_session_is_found_by_its_cookie_also_by_another_replica(self, desk: Desk) -> None:
        async def scenario() -> None:
            made = await desk.make(Access.OPERATOR)
            cookie, session = await desk.sessions.begin(made.text)
            assert session.principal == Principal("ann", Access.OPERATOR)
            await desk.other.load()
            elsewhere = Sessions(desk.other, desk.store.tokens, desk.clock)
            found = await elsewhere.find(cookie)
            assert found is not None
            assert (found.principal, found.csrf) == (session.principal, session.csrf)
            assert await elsewhere.find(cookie + "x") is None
            assert await elsewhere.find("") is None

        asyncio.run(scenario())

    def test_the_csrf_value_is_of_one_session_and_does_not_tell_the_cookie(self, desk: Desk) -> None:
        async def scenario() -> None:
            made = await desk.make()
            (cookie, one), (_, other) = [await desk.sessions.begin(made.text) for _ in range(2)]
            assert one.csrf != other.csrf
            assert cookie not in one.csrf

        asyncio.run(scenario())

    def test_it_lasts_no_longer_than_half_a_day_nor_than_its_token(self, desk: Desk) -> None:
        async def scenario() -> None:
            short, _ = await desk.sessions.begin((await desk.make(end=desk.clock.now + 10)).text)
            long, _ = await desk.sessions.begin((await desk.make()).text)
            desk.clock.now += 10
            assert await desk.sessions.find(short) is None
            desk.clock.now += LASTS - 11
            assert await desk.sessions.find(long) is not None
            desk.clock.now += 1
            assert await desk.sessions.find(long) is None

        asyncio.run(scenario())

    def test_it_dies_with_its_token_and_by_itself(self, desk: Desk) -> None:
        async def scenario() -> None:
            await desk.make()
            made = await desk.make()
            (one, _), (other, session) = [await desk.sessions.begin(made.text) for _ in range(2)]
            await desk.sessions.end(one)
            assert await desk.sessions.find(one) is None
            assert await desk.sessions.find(other) is not None
            stream = Cut()
            session.credential.streams.add(stream)
            await desk.auth.revoke(made.token.id, None)
            assert await desk.sessions.find(other) is None
            assert stream.times == 1

        asyncio.run(scenario())

    def test_what_is_no_token_begins_none(self, desk: Desk) -> None:
        async def scenario() -> None:
            for text in ("", "x", make_token().text, "a.b.c", "\ud800"):
                with pytest.raises(UnauthorizedError):
                    await desk.sessions.begin(text)

        asyncio.run(scenario())
