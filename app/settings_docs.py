"""The settings as Markdown tables for docs/settings.md, generated from the code."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from app.settings import PREFIX, Settings

CLIENT_SETTINGS: Final = {
    "URL": ("http://127.0.0.1:8224", "URL of the service."),
    "TOKEN": ("", "Token to send."),
    "TOKEN_FILE": ("", "File with the token, if `BLOCKLIST_TOKEN` is not set; read again after a 401."),
    "CONTEXT": ("", "[Context](command.md#contexts) of the command, instead of the one in use."),
    "TIMEOUT": ("5s", "Time that the command waits for each response."),
    "DEFAULT_DURATION": (
        "",
        "Duration of the command's blocks without an end; if it is not set, that of the service.",
    ),
}
"""Name to default and description, of the settings of clients."""
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def service_table() -> str:
    fields = Settings.model_fields.items()
    return _table((name.upper(), _default_text(field.default), field.description or "") for name, field in fields)


def client_table() -> str:
    return _table((name, default, description) for name, (default, description) in CLIENT_SETTINGS.items())


def fill_page(page: str) -> str:
    """The page with both tables between their markers. Raises ValueError if a marker is missing."""
    for name, table in {"service": service_table(), "client": client_table()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, opened, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"The page needs the lines {begin.strip()} and {end}, for the table between them.")
        page = f"{head}{begin}{table}{end}{tail}"
    return page


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        f"| `{PREFIX}{name}` | {default and f'`{default}`'} | {' '.join(text.split())} |"
        for name, default, text in rows
    ]
    return "\n".join(["| name | default | |", "|---|---|---|", *lines, ""])


def _default_text(value: object) -> str:
    """A default as it would be written in the environment."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return _duration(round(value.total_seconds()))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _duration(seconds: int) -> str:
    """In the largest unit that divides it."""
    unit = next((unit for unit, size in _UNITS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}"
