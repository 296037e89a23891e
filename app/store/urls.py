"""Database URLs: validation, and a form without credentials for messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

_POSTGRESQL: Final = ("postgresql://", "postgres://")
_PORTS: Final = re.compile("[0-9,]*", re.ASCII)


def is_postgresql(url: str) -> bool:
    """Whether a URL names a PostgreSQL database, in the form of libpq; otherwise it names a SQLite file."""
    return url.startswith(_POSTGRESQL)


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL."""
    return Path(make_url(url).database or "")


def redacted(url: str) -> str:
    """The URL for messages: hosts, ports and database, without user and password."""
    if not is_postgresql(url):
        return url
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - loaded only for PostgreSQL

    parameters = conninfo_to_dict(url)
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    # A single port applies to all hosts.
    addresses = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=False)
    return f"postgresql://{','.join(_host_and_port(host, port) for host, port in addresses)}/{parameters['dbname']}"


def _host_and_port(host: str, port: str) -> str:
    host = f"[{host}]" if ":" in host else host or "localhost"
    return f"{host}:{port}" if port else host


def check_url(url: str) -> str:
    """The URL if it is valid. Raises ValueError with the expected form."""
    if is_postgresql(url):
        _check_postgresql(url)
    elif not url.startswith("sqlite:///") or len(url) == len("sqlite:///") or ":memory:" in url:
        raise ValueError(
            "give sqlite:///FILE (three slashes and a relative path, or four and an absolute one),"
            " or postgresql://USER@HOST:PORT/DATABASE"
        )
    return url


def _check_postgresql(url: str) -> None:
    from psycopg import ProgrammingError  # noqa: PLC0415
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError:
        parameters = None  # The message of libpq would contain the password.
    if parameters is None or _has_unescaped_password(url, str(parameters.get("port") or "")):
        raise ValueError(
            "give postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in the password write %25 for %, %40 for @, %2F for /"
        )
    if not parameters.get("dbname"):
        raise ValueError("name the database: postgresql://USER@HOST:PORT/DATABASE")


def _has_unescaped_password(url: str, port: str) -> bool:
    """Whether libpq takes a part of a password that is not percent-encoded for a host, port or database."""
    place, _, name = url.partition("://")[2].partition("?")[0].partition("/")
    return place.count("@") > 1 or "@" in name or _PORTS.fullmatch(port) is None
