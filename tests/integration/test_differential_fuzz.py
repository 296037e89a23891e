"""The fast path, the ordinary route and h11 read the same bytes in the same way; `make fuzz` sends a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.differential import MismatchError, compare, fuzz, read_by_h11
from tests.fuzz.services import fuzzed_services
from tests.fuzz.traffic import Traffic
from tests.length import longer

REQUESTS = 4_000
DELETE = b"DELETE /blocklist/nodes/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("auth", ["tokens", "off"])
def test_the_same_bytes_mean_the_same_to_the_fast_path_and_to_the_ordinary_route(tmp_path: Path, auth: str) -> None:
    with fuzzed_services(tmp_path, auth) as (ports, credentials):
        assert fuzz(ports, credentials, requests=longer(REQUESTS), seed=1) > 0


def test_a_difference_is_found(tmp_path: Path) -> None:
    with fuzzed_services(tmp_path, "off") as (ports, _):
        body = b'{"action": "MARK_BLOCKED", "cause": "hot"}'
        head = b"PUT /blocklist/nodes/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        put = Traffic(pieces=[head % len(body) + body], requests=1)
        compare(ports, put, set())
        with pytest.raises(MismatchError, match="differ"):
            # One service in the place of both: it answers 200, and then 404.
            compare((ports[0], ports[0]), Traffic(pieces=[DELETE], requests=1), set())


def test_h11_reads_up_to_the_first_request_that_it_refuses() -> None:
    good = b"GET /blocklist HTTP/1.1\r\nHost: localhost\r\n\r\n"
    seen, whole = read_by_h11(good + b"\x00" + good, set())
    assert [request.target for request in seen] == [b"/blocklist"]
    assert not whole
