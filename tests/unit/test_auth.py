"""Tokens, roles, addresses and claims."""

from __future__ import annotations

import re

import pytest

from app.auth import oidc
from app.auth.authenticator import TOKEN_PATTERN, bearer_token, generate_token
from app.auth.credential import AUTH_DISABLED, Credential
from app.net.addresses import Networks, check_secure_url, is_loopback
from blocklist.model.claims import ROLES_BY_NAME, Grant, Grants, NewToken, Role, Token, check_token_name
from blocklist.model.errors import InvalidError


class TestRoles:
    def test_each_role_includes_the_weaker_ones(self) -> None:
        roles = list(Role)
        for place, role in enumerate(roles):
            assert [needed for needed in roles if role.allows(needed)] == roles[: place + 1]

    @pytest.mark.parametrize("name", ["a", "on-call", "team.x:y_z", "A" * 253])
    def test_names_have_the_syntax_of_node_ids(self, name: str) -> None:
        assert check_token_name(name) == name

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "A" * 254, "a@b"])
    def test_other_names_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidError):
            check_token_name(name)

    def test_a_token_is_valid_before_its_end_and_its_revocation(self) -> None:
        token = Token(id="1", name="a", role=Role.READER, created_at=1, end=10)
        assert (token.is_valid(9), token.is_valid(10)) == (True, False)
        assert not Token(id="1", name="a", role=Role.READER, created_at=1, revoked_at=2).is_valid(3)

    def test_a_new_token_does_not_show_its_text(self) -> None:
        made = NewToken(token=Token(id="1", name="a", role=Role.READER, created_at=1), text="hidden")
        assert "hidden" not in repr(made)


class TestTokens:
    def test_a_token_has_a_public_id_and_a_secret_of_32_bytes(self) -> None:
        made = generate_token()
        match = TOKEN_PATTERN.fullmatch(made.text.encode())
        assert match is not None
        assert match[1].decode() == made.id
        assert re.fullmatch("[0-9a-f]{64}", made.digest)
        assert match[2].decode() not in made.digest

    def test_tokens_are_unique(self) -> None:
        assert len({generate_token().text for _ in range(1000)}) == 1000

    @pytest.mark.parametrize(
        ("header", "text"),
        [
            (b"Bearer abc", b"abc"),
            (b"bearer abc", b"abc"),
            (b"BEARER  abc ", b"abc"),
            (b"Basic abc", None),
            (b"abc", None),
            (b"", None),
            (b"Bearer", b""),
        ],
    )
    def test_the_token_in_a_header(self, header: bytes, text: bytes | None) -> None:
        assert bearer_token(header) == text


class TestAddresses:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost"])
    def test_loopback(self, host: str) -> None:
        assert is_loopback(host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com"])
    def test_not_loopback(self, host: str) -> None:
        assert not is_loopback(host)

    def test_networks(self) -> None:
        networks = Networks(["10.0.0.0/8", " 192.168.1.7", "fd00::/8"])
        assert all(host in networks for host in ("10.1.2.3", "192.168.1.7", "fd00::1", "::ffff:10.0.0.1"))
        assert not any(host in networks for host in ("11.0.0.1", "192.168.1.8", "fe80::1", "testclient", ""))
        assert not Networks([""])

    @pytest.mark.parametrize("url", ["https://a.example", "http://127.0.0.1:1/x", "http://localhost"])
    def test_https_and_loopback_urls_are_secure(self, url: str) -> None:
        assert check_secure_url(url) == url

    @pytest.mark.parametrize("url", ["http://a.example", "file:///etc/passwd", "https://", "x", ""])
    def test_other_urls_are_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="https"):
            check_secure_url(url)


class TestClaims:
    @pytest.mark.parametrize(
        ("roles", "access"),
        [
            (["reader", "admin", "x"], Role.ADMIN),
            ("operator", Role.OPERATOR),
            ("reader listener", Role.LISTENER),
            ("reader,operator", Role.OPERATOR),
            (["Admin", "ADMIN", "admin "], None),
            ([], None),
            (None, None),
            ({"admin": True}, None),
            (["reader", 7, None, ["admin"]], Role.READER),
            ("administrator", None),
        ],
    )
    def test_the_strongest_role_counts(self, roles: object, access: Role | None) -> None:
        grant = ROLES_BY_NAME.of_any(oidc.texts_in(roles))
        assert (grant and grant.role) is access


def test_a_stream_that_cannot_be_closed_leaves_no_other_stream_of_a_revoked_token_open() -> None:
    class Stream:
        def __init__(self, *, failing: bool) -> None:
            self.failing = failing
            self.closed = False

        def close(self) -> None:
            if self.failing:
                raise RuntimeError("the connection is closed")
            self.closed = True

    credential = Credential(AUTH_DISABLED)
    # In a set: whatever its order is, one that raises is closed before one that does not.
    streams = [Stream(failing=number % 2 == 0) for number in range(40)]
    credential.streams.update(streams)
    credential.invalidate()
    assert all(stream.closed for stream in streams if not stream.failing)
    assert not credential.is_valid(0)


class TestGrants:
    def test_the_strongest_rule_of_an_account_or_its_namespace_applies(self) -> None:
        grants = Grants.of_accounts("spark/*=reader, spark/driver=listener,ops/ann=admin,ops/*=operator")
        found = [
            grants.of_account(*account.split("/"))
            for account in ("spark/driver", "spark/x", "ops/ann", "ops/bob", "spar/driver", "spark-2/driver")
        ]
        roles = [None if grant is None else grant.role for grant in found]
        assert roles == [Role.LISTENER, Role.READER, Role.ADMIN, Role.OPERATOR, None, None]

    @pytest.mark.parametrize(
        "text",
        ["spark", "spark/*", "*/*=reader", "*/driver=reader", "spark/d*=reader", "spark/driver=root", "a/b/c=reader",
         "Spark/driver=reader", "spark/driver:listener", "system:serviceaccount:spark:driver=listener", "/x=reader"],
    )  # fmt: skip
    def test_other_rules_of_accounts_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="NAME=ROLE"):
            Grants.of_accounts(text)

    def test_groups_have_roles_with_owners_and_ids(self) -> None:
        text = "sre=operator, /platform/on call=admin,alerts=operator:alertmanager/*|night,etl=listener:etl-*"
        grants = Grants.parse(text)
        assert grants.of_any(["sre"]) == Grant(Role.OPERATOR)
        assert grants.of_any(["x", "/platform/on call", "sre"]) == Grant(Role.ADMIN)
        alerts, etl = grants.of_any(["alerts"]), grants.of_any(["etl"])
        assert (alerts and alerts.owners, alerts and alerts.listeners) == (("alertmanager/*", "night"), None)
        assert (etl and etl.owners, etl and etl.listeners) == (None, ("etl-*",))
        assert grants.of_any(["sre", "alerts"]) == Grant(Role.OPERATOR), "one that is not restricted is not"
        assert grants.of_any(["other"]) is None

    @pytest.mark.parametrize(
        "text", ["sre", "sre=root", "=reader", "sre=admin:x", "sre=reader:x", "sre=operator:", "e=listener:a b"]
    )
    def test_other_rules_of_groups_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"sre|reader|listener"):
            Grants.parse(text)


@pytest.mark.parametrize(
    ("name", "valid"), [("anna", True), ("a b", True), (" ", False), ("\u00a0 ", False), ("", False)]
)
def test_a_blank_is_no_name_of_an_author(name: str, valid: bool) -> None:
    """It would be the owner of claims."""
    assert oidc.is_name(name) is valid
