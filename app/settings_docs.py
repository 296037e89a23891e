"""The settings as Markdown tables, for docs/settings.md: written by the code, so that they say what it does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from app.settings import PREFIX, Settings

CLIENT_SETTINGS: Final = {
    "URL": ("http://127.0.0.1:8224", "Where the service is: for the command, the Python client, agents and managers."),
    "TOKEN": ("", "The token to send."),
    "TOKEN_FILE": ("", "A file with the token, where `BLOCKLIST_TOKEN` is not set; read again when it is refused."),
    "TIMEOUT": ("5s", "The command waits so long for each answer."),
    "DEFAULT_DURATION": ("4h", "The command blocks for so long unless told; `forever` is one, too."),
}
"""Name to default and meaning, of what those take who talk to the service."""
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def service_table() -> str:
    """What the service takes."""
    fields = Settings.model_fields.items()
    return _table((name.upper(), _default_text(field.default), field.description or "") for name, field in fields)


def client_table() -> str:
    """What its clients take."""
    return _table((name, default, meaning) for name, (default, meaning) in CLIENT_SETTINGS.items())


def fill_page(page: str) -> str:
    """The page with both tables between their markers. Raises ValueError for a page without these."""
    for name, table in {"service": service_table(), "client": client_table()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, opened, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"there is no place for the table of the {name}, between {begin.strip()} and {end}")
        page = f"{head}{begin}{table}{end}{tail}"
    return page


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [f"| `{PREFIX}{name}` | {default and f'`{default}`'} | {meaning} |" for name, default, meaning in rows]
    return "\n".join(["| name | default | |", "|---|---|---|", *lines, ""])


def _default_text(value: object) -> str:
    """A default as one would write it into the environment."""
    match value:
        case bool():
            return str(value).lower()
        case timedelta():
            return _duration(round(value.total_seconds()))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _duration(seconds: int) -> str:
    """In the largest unit that leaves no rest."""
    unit = next((unit for unit, size in _UNITS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}"
