"""TLS: the certificate that the service shows."""

from __future__ import annotations

import ssl

from app.settings import Settings, SettingsError

_INCOMPLETE = "BLOCKLIST_TLS_CERT and BLOCKLIST_TLS_KEY go together: give both, or none."


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the certificate of the settings; None without one. Raises SettingsError."""
    cert, key = settings.tls_cert, settings.tls_key
    if not cert and not key:
        return None
    if not cert or not key:
        raise SettingsError(_INCOMPLETE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        raise SettingsError(
            f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} are no certificate and its key: "
            f"{(error.reason or 'unreadable').lower().replace('_', ' ')}."
        ) from None
    except OSError as error:
        raise SettingsError(_unreadable(cert, key, error)) from None
    return context


def _unreadable(cert: str, key: str, error: OSError) -> str:
    """Which of the two it is; OpenSSL does not say."""
    for name, path in (("CERT", cert), ("KEY", key)):
        try:
            with open(path, "rb"):  # noqa: PTH123
                pass
        except OSError as own:
            return f"BLOCKLIST_TLS_{name} {path} cannot be read: {own.strerror}."
    return f"BLOCKLIST_TLS_CERT {cert} and BLOCKLIST_TLS_KEY {key} cannot be read: {error.strerror}."


def _no_password() -> str:
    raise SettingsError(
        "The key of BLOCKLIST_TLS_KEY is encrypted: give one that is not, readable by the service only."
    )
