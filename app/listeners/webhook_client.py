"""WebhookClient: one signed POST to a listener's callback. Nothing in the response is trusted."""

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

from app.net.addresses import PinnedTarget, PushError, PushRejectedError
from app.requests import ReportBody
from blocklist.model.errors import InvalidError
from blocklist.model.listener import EMPTY_REPORT, Report
from blocklist.wire.body import parse_json

TIMEOUT_SECONDS: Final = 5.0
"""Timeout of a whole push."""
MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""Maximum size of a response; a larger one acknowledges the push, but its report is ignored."""
_JSON: Final = "application/json"


class _BoundedResponseHandler(ResponseHandler):
    """aiohttp limits a response head, but not the number of interim responses (1xx) before the final one."""

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
    """A 2xx response: the report in it, and why that was ignored, if it was."""

    report: Report
    error: str | None = None


class WebhookClient:
    """One HTTP client for all pushes. No redirects, cookies, compression, or proxies from the environment."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._session = aiohttp.ClientSession(
            connector=_BoundedConnector(),
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": "blocklist", "Content-Type": _JSON, "Accept": _JSON, "Accept-Encoding": "identity"},
        )

    async def post(
        self, target: PinnedTarget, body: bytes, message_id: str, secrets: Sequence[str], now: int
    ) -> PushResponse:
        """Send one message at `now` (Unix ms), signed with each secret as in Standard Webhooks. Raises PushError."""
        # The address instead of the name: a second resolution could give another, forbidden address.
        url = URL(target.url, encoded=True).with_host(target.address)
        headers = {"Host": target.authority, **_signature_headers(body, message_id, secrets, now)}
        post = self._session.post(url, data=body, headers=headers, allow_redirects=False, server_hostname=target.host)
        try:
            async with post as response:
                if not 200 <= response.status < 300:
                    raise PushRejectedError(f"The listener responded with status {response.status}.")
                return await _read(response)
        except TimeoutError:
            raise PushError(f"The listener did not respond within {self._timeout:g} s.") from None
        except aiohttp.ServerDisconnectedError:
            raise PushError("The listener closed the connection without a response.") from None
        except aiohttp.ClientResponseError:
            raise PushError("The listener's response is not valid HTTP.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PushError(f"Cannot connect to the listener: {str(error) or type(error).__name__}"[:300]) from None

    async def close(self) -> None:
        await self._session.close()


async def _read(response: aiohttp.ClientResponse) -> PushResponse:
    if response.content_type != _JSON:
        return PushResponse(report=EMPTY_REPORT)
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            response.close()
            error = f"The listener's response is larger than {MAX_RESPONSE_BYTES // 1024} KiB; its report was ignored."
            return PushResponse(report=EMPTY_REPORT, error=error)
    if not body:
        return PushResponse(report=EMPTY_REPORT)
    try:
        return PushResponse(report=ReportBody.parse(parse_json(bytes(body))).value())
    except InvalidError as error:
        detail = f"The report in the listener's response was ignored: {error.detail}"
        return PushResponse(report=EMPTY_REPORT, error=detail[:300])


def _signature_headers(body: bytes, message_id: str, secrets: Sequence[str], now: int) -> dict[str, str]:
    timestamp = datetime.fromtimestamp(now // 1000, UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, timestamp, text) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now // 1000),
        "webhook-signature": " ".join(signatures),
    }
