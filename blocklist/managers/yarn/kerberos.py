"""SPNEGO, for a ResourceManager whose REST API wants Kerberos. Needs the extra `kerberos` of this package."""

from __future__ import annotations

import importlib
import logging
from typing import Final

import httpx

from blocklist.model.errors import InvalidError

_LIBRARY_LOG: Final = "httpx_gssapi.gssapi_"


class _NewErrors(logging.Filter):
    """Lets the library report why there is no login in one line, and once: it does so twice for each request."""

    _last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = None
        last, self._last = self._last, record.getMessage()
        return last != self._last


def kerberos_auth() -> httpx.Auth:
    """Proves the identity of the ticket in the credentials cache, or of KRB5_CLIENT_KTNAME, a keytab.

    The ResourceManager must prove its own. Raises InvalidError if the library, or what it needs, is not installed.
    """
    try:
        library = importlib.import_module("httpx_gssapi")
    except ImportError as error:
        raise InvalidError(
            f"--kerberos needs the package httpx-gssapi, which cannot be loaded ({error}). Install it with pip install"
            " httpx-gssapi. The package gssapi, which it needs, has no builds for Linux and is compiled against the"
            " system's Kerberos: on Debian, apt-get install gcc python3-dev libkrb5-dev first."
        ) from error
    logging.getLogger(_LIBRARY_LOG).addFilter(_NewErrors())
    # Not opportunistic: once logged in by its cookie, the ResourceManager proves its identity no more.
    auth: httpx.Auth = library.HTTPSPNEGOAuth(mutual_authentication=library.REQUIRED)
    return auth
