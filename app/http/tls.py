"""TLS: the certificate that the service presents, and the time for a handshake."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import uvloop

from app.settings import Settings, SettingsError


class TlsLoop(uvloop.Loop):
    """An event loop that limits the handshakes of its servers to `handshake_timeout` seconds.

    uvicorn leaves them a minute, and a handshake does not count as a connection yet: a client that begins as many as
    the service may have open files would stop it for that long.
    """

    handshake_timeout: float

    async def create_server(self, *args: Any, **options: Any) -> asyncio.AbstractServer:  # type: ignore[override]
        return await super().create_server(*args, ssl_handshake_timeout=self.handshake_timeout, **options)


def tls_loop(handshake_timeout: float) -> TlsLoop:
    loop = TlsLoop()
    loop.handshake_timeout = handshake_timeout
    return loop


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the certificate of the settings; None without one. Raises SettingsError."""
    cert, key = settings.tls_cert, settings.tls_key
    if not cert and not key:
        return None
    if not cert or not key:
        raise SettingsError("Set both BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY, or neither.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_refuse_encrypted)
    except ssl.SSLError as error:
        raise SettingsError(
            f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} are not a certificate and its key: "
            f"{(error.reason or 'unreadable').lower().replace('_', ' ')}."
        ) from None
    except OSError as error:
        raise SettingsError(_unreadable(cert, key, error)) from None
    return context


def _unreadable(cert: str, key: str, error: OSError) -> str:
    """Names the file that cannot be read; OpenSSL does not."""
    for name, path in (("CERT", cert), ("KEY", key)):
        try:
            with open(path, "rb"):  # noqa: PTH123
                pass
        except OSError as cause:
            return f"BLOCKLIST_TLS_{name} {path} cannot be read: {cause.strerror}."
    return f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} cannot be read: {error.strerror}."


def _refuse_encrypted() -> str:
    raise SettingsError(
        "The key in BLOCKLIST_TLS_KEY is encrypted: use one that is not, in a file that only the service can read."
    )
