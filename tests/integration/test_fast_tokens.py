"""With tokens too, the fast paths return the bytes of the ordinary routes, for every credential."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.roles import Role
from tests.integration.bodies import block
from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import connection_to, exchange, read_response, read_until_closed, request, send_request
from tests.integration.secured import secured_service
from tests.integration.test_fast_put import without_volatile_parts

CLOSING_REQUEST: Final = request("/healthz", "Connection: close")
BODY: Final = json.dumps(block(allowMerge=True)).encode()
WRONG: Final = "blocklist_00000000_" + "A" * 43

CREDENTIALS: Final[dict[str, list[str]]] = {
    "none": [],
    "reader": ["Authorization: Bearer READER"],
    "listener": ["Authorization: Bearer LISTENER"],
    "operator": ["Authorization: Bearer OPERATOR"],
    "admin": ["Authorization: Bearer ADMIN"],
    "the admin's file": ["Authorization: Bearer FILE"],
    "revoked": ["Authorization: Bearer REVOKED"],
    "unknown": [f"Authorization: Bearer {WRONG}"],
    "another's secret": ["Authorization: Bearer MIXED"],
    "lower case": ["authorization: bearer OPERATOR"],
    "blanks": ["Authorization:   Bearer   OPERATOR  "],
    "a tab": ["Authorization: Bearer\tOPERATOR"],
    "no scheme": ["Authorization: OPERATOR"],
    "basic": ["Authorization: Basic OPERATOR"],
    "no token": ["Authorization: Bearer"],
    "two": ["Authorization: Bearer OPERATOR", "Authorization: Bearer OPERATOR"],
    "good then bad": ["Authorization: Bearer OPERATOR", "Authorization: Bearer x"],
    "cut": ["Authorization: Bearer OPERATO"],
    "more": ["Authorization: Bearer OPERATORx"],
    "in a list": ["Authorization: Bearer OPERATOR, Bearer x"],
    "not ASCII": ["Authorization: Bearer \xff"],
    "as a cookie": ["Cookie: blocklist_session=OPERATOR"],
    "and a cookie": ["Authorization: Bearer OPERATOR", "Cookie: blocklist_session=x"],
    "for a proxy": ["Proxy-Authorization: Bearer OPERATOR"],
    "and a user": ["Authorization: Bearer OPERATOR", "X-Forwarded-User: eve"],
}
REQUESTS: Final[dict[str, tuple[str, str, list[str], bytes]]] = {
    "list": ("GET", "/blocklist", [], b""),
    "list, gzip": ("GET", "/blocklist", ["Accept-Encoding: gzip"], b""),
    "list, known": ("GET", "/blocklist", ["If-None-Match: *"], b""),
    "list, HEAD": ("HEAD", "/blocklist", [], b""),
    "list, query": ("GET", "/blocklist?x", [], b""),
    "put": ("PUT", "/blocklist/nodes/put", [], BODY),
    "put, malformed": ("PUT", "/blocklist/nodes/put", [], b"{"),
    "put, bad id": ("PUT", "/blocklist/nodes/a%20b", [], BODY),
    "put, too large": ("PUT", "/blocklist/nodes/put", [], BODY.ljust(65_537)),
    "put, several": ("PUT", "/blocklist/nodes", [], b'{"put": %b}' % BODY),
    "delete": ("DELETE", "/blocklist/nodes/free", [], b""),
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> dict[str, str]:
    """The text for each word above; the database with these tokens is in FOLDER."""
    folder = tmp_path_factory.mktemp("tokens")
    with secured_service(folder, databases) as secured:
        revoked = secured.make_token(Role.ADMIN)
        with secured.client(secured.admin) as client:
            client.delete(f"/tokens/{revoked['id']}").raise_for_status()
        found = {access.name: token for access, token in secured.tokens.items()}
    mixed = found["OPERATOR"][:18] + found["ADMIN"][18:]
    return {**found, "FILE": secured.admin, "REVOKED": revoked["token"], "MIXED": mixed, "FOLDER": str(folder)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tokens: dict[str, str]) -> Iterator[list[ServiceProcess]]:
    folder = Path(tokens["FOLDER"])
    settings = {"auth": "tokens", "admin_token_file": str(folder / "admin.token")}
    fast = ServiceProcess(tmp_path_factory.mktemp("fast"), **settings)
    ordinary = ServiceProcess(tmp_path_factory.mktemp("ordinary"), fast_path="false", **settings)
    for process in (fast, ordinary):
        process.database.write_bytes((folder / "blocklist.db").read_bytes())
    with fast, ordinary:
        yield [fast, ordinary]


def payload_of(name: str, who: str, tokens: dict[str, str]) -> bytes:
    method, path, headers, body = REQUESTS[name]
    lines = list(CREDENTIALS[who])
    for word in ("READER", "LISTENER", "OPERATOR", "ADMIN", "FILE", "REVOKED", "MIXED"):
        lines = [line.replace(word, tokens[word]) for line in lines]
    return request(path, *headers, *lines, method=method, body=body)


@pytest.mark.parametrize(("name", "who"), list(product(REQUESTS, CREDENTIALS)))
def test_the_response_is_that_of_the_ordinary_route(
    pair: list[ServiceProcess], tokens: dict[str, str], name: str, who: str
) -> None:
    payload = payload_of(name, who, tokens)
    fast, ordinary = (
        without_volatile_parts(read_until_closed(process.port, payload + CLOSING_REQUEST)) for process in pair
    )
    assert fast == ordinary
    assert fast.startswith(b"HTTP/1.1 ")


def test_a_request_never_gets_the_credential_of_an_earlier_one(
    pair: list[ServiceProcess], tokens: dict[str, str]
) -> None:
    """Different credentials in turn on one connection: each gets the same response every time."""
    for process in pair:
        with connection_to(process.port) as connection, connection.makefile("rb") as stream:
            rounds = []
            for _ in range(4):
                statuses = []
                for who in ("operator", "none", "reader", "revoked", "admin", "another's secret"):
                    for name in ("list", "put"):
                        connection.sendall(payload_of(name, who, tokens))
                        statuses.append(read_response(stream).status)
                rounds.append(statuses)
            assert rounds[1:] == [[200, 202, 401, 401, 200, 403, 401, 401, 200, 202, 401, 401]] * 3


def test_a_poller_with_a_token_gets_cached_responses(pair: list[ServiceProcess], tokens: dict[str, str]) -> None:
    bearer = f"Authorization: Bearer {tokens['READER']}"

    def route_reads() -> str:
        text = exchange(pair[0].port, request("/metrics", bearer))[0].body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith("blocklist_list_reads") and "route" in line]
        return line

    # The route fills the cache; after that it is not needed.
    assert send_request(pair[0].port, request("/blocklist?", bearer)).status == 200
    before = route_reads()
    responses = exchange(pair[0].port, *[request("/blocklist", bearer)] * 10, methods=["GET"] * 10)
    assert [response.status for response in responses] == [200] * 10
    assert route_reads() == before
