"""YarnNodes: whatever the ResourceManager sends, a read ends."""

from __future__ import annotations

import pytest

from blocklist.managers import yarn_nodes
from blocklist.managers.yarn_nodes import YarnNodes
from tests.integration.fake_servers import Responder, fake_server, respond_endlessly

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "trickle",
    [
        pytest.param(respond_endlessly(b"HTTP/1.1 200 OK\r\nX-Header: ", b"x", pause=0.05), id="header"),
        pytest.param(respond_endlessly(HEAD, b"1\r\n \r\n", pause=0.05), id="body"),
    ],
)
def test_a_response_that_trickles_without_end_is_given_up_after_the_timeout(
    trickle: Responder, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_server(trickle) as resource_manager:
        assert YarnNodes(resource_manager.url, timeout=0.5).read() is None
    assert "no complete response within 0.5 s" in caplog.text


def test_a_response_that_is_too_large_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(yarn_nodes, "_MAX_BYTES", 1 << 20)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with fake_server(respond_endlessly(HEAD, chunk)) as resource_manager:
        assert YarnNodes(resource_manager.url, timeout=60).read() is None
    assert "the response is larger than 1 MiB" in caplog.text
