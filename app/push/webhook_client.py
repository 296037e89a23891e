"""Sender: one signed POST to a listener's callback. It trusts nothing that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from standardwebhooks import Webhook
from yarl import URL

from app.listeners.entry import Report
from app.net.callback_policy import PinnedTarget, PushError
from blocklist.model.errors import InvalidError
from blocklist.wire.listeners import ReportBody
from blocklist.wire.nodes import parse_json

TIMEOUT_SECONDS: Final = 5.0
"""How long a listener may take to answer, all in all."""
MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""Bytes of an answer that are read."""
_JSON: Final = "application/json"


class _BoundedResponseHandler(ResponseHandler):
    """aiohttp bounds a head, but not how many interim answers (1xx) may come before the one that counts."""

    _remaining_bytes = 0

    def set_response_params(self, **params: Any) -> None:
        self._remaining_bytes = 2 * MAX_RESPONSE_BYTES
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._remaining_bytes -= len(data)
        if self._remaining_bytes >= 0:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()


class _BoundedConnector(aiohttp.TCPConnector):
    def __init__(self) -> None:
        super().__init__(limit=0)
        self._factory: Any = partial(_BoundedResponseHandler, loop=asyncio.get_running_loop())


@dataclass(frozen=True, kw_only=True, slots=True)
class PushResponse:
    """A 2xx answer: what the listener said with it, and what was wrong with that, if anything."""

    report: Report
    error: str | None = None


class WebhookClient:
    """One HTTP client for all pushes. Redirects, cookies, proxies of the environment and compression are off."""

    def __init__(self, seconds: float = TIMEOUT_SECONDS) -> None:
        self._session = aiohttp.ClientSession(
            connector=_BoundedConnector(),
            timeout=aiohttp.ClientTimeout(total=seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": "blocklist", "Content-Type": _JSON, "Accept": _JSON, "Accept-Encoding": "identity"},
        )

    async def post(
        self, target: PinnedTarget, body: bytes, message_id: str, secrets: Sequence[str], now: int
    ) -> PushResponse:
        """Send one message, signed as Standard Webhooks has it. Raises PushError."""
        # The address instead of the name: nothing is resolved a second time.
        url = URL(target.url, encoded=True).with_host(target.address)
        headers = {"Host": target.authority, **_signature_headers(body, message_id, secrets, now)}
        post = self._session.post(url, data=body, headers=headers, allow_redirects=False, server_hostname=target.host)
        try:
            async with post as response:
                if not 200 <= response.status < 300:
                    raise PushError(f"It answered {response.status}.")
                return await _read(response)
        except TimeoutError:
            raise PushError("It did not answer in time.") from None
        except aiohttp.ServerDisconnectedError:
            raise PushError("It hung up before it had answered.") from None
        except aiohttp.ClientResponseError:
            raise PushError("It answered what is not HTTP.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PushError(f"It is out of reach: {str(error) or type(error).__name__}"[:300]) from None

    async def close(self) -> None:
        await self._session.close()


async def _read(response: aiohttp.ClientResponse) -> PushResponse:
    if response.content_type != _JSON:
        return PushResponse(report=Report())
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            response.close()
            return PushResponse(report=Report(), error=f"Its answer is larger than {MAX_RESPONSE_BYTES // 1024} KiB.")
    if not body:
        return PushResponse(report=Report())
    try:
        said = ReportBody.parse(parse_json(bytes(body)))
    except InvalidError as error:
        return PushResponse(report=Report(), error=f"Its answer was passed over: {error.detail}"[:300])
    return PushResponse(report=Report.from_body(said))


def _signature_headers(body: bytes, message_id: str, secrets: Sequence[str], now: int) -> dict[str, str]:
    moment = datetime.fromtimestamp(now // 1000, UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, moment, text) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now // 1000),
        "webhook-signature": " ".join(signatures),
    }
