"""Settings from the environment, prefix BLOCKLIST_. A misspelt name stops the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Final, Literal

import durationpy
from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.notify.callbacks import AllowedHosts

PREFIX: Final = "BLOCKLIST_"
CLIENTS: Final = frozenset({"BLOCKLIST_URL", "BLOCKLIST_TOKEN", "BLOCKLIST_TOKEN_FILE", "BLOCKLIST_TIMEOUT"})
"""Names that belong to the client, passed over here."""


class SettingsError(Exception):
    """A setting is wrong; the message is for the operator."""


def _duration(value: object) -> object:
    """`90s`, `2h`, `7d` as Go writes durations, with days."""
    if not isinstance(value, str):
        return value
    try:
        parsed: timedelta = durationpy.from_str(value)
    except durationpy.DurationError:
        raise ValueError("give a duration such as 90s, 2h or 7d") from None
    return parsed


Duration = Annotated[timedelta, BeforeValidator(_duration)]


class Settings(BaseSettings):
    """What an operator can set. Durations are written 90s, 2h, 7d."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on.")] = 8224
    database_url: Annotated[str, Field(description="Where the list is kept.")] = "sqlite:///blocklist.db"
    log_format: Annotated[Literal["console", "json"], Field(description="How log lines look.")] = "console"
    log_max_changes: Annotated[
        int, Field(ge=1000, description="The change log keeps at most so many changes (never fewer than 1,000).")
    ] = 1_000_000
    log_max_age: Annotated[
        Duration, Field(ge=timedelta(hours=1), description="The change log forgets older changes, but the last 1,000.")
    ] = timedelta(days=90)
    max_waiting: Annotated[
        int, Field(ge=1, description="So many changes may wait for the database; beyond them the answer is 503.")
    ] = 10_000
    heartbeat: Annotated[
        Duration, Field(ge=timedelta(seconds=0.1), description="A pushed listener that is quiet is asked so often.")
    ] = timedelta(seconds=10)
    managers_first: Annotated[
        Duration, Field(ge=timedelta(0), description="JobMasters wait at most so long for the ResourceManagers.")
    ] = timedelta(seconds=1)
    forget_listeners: Annotated[
        Duration, Field(ge=timedelta(seconds=1), description="Listeners are forgotten so long after their lease.")
    ] = timedelta(days=1)
    evidence_applications: Annotated[
        int, Field(ge=0, description="So many applications must say so before a node is blocked by it; 0 is never.")
    ] = 2
    evidence_window: Annotated[
        Duration, Field(ge=timedelta(seconds=1), description="All of them must have said so within this time.")
    ] = timedelta(seconds=60)
    callback_hosts: Annotated[
        str, Field(description="Where pushes may go: names, *.name and networks, with commas between.")
    ] = "127.0.0.0/8,::1/128"
    fast_path: Annotated[bool, Field(description="Answer plain requests below ASGI.")] = True

    @field_validator("callback_hosts")
    @classmethod
    def _hosts(cls, text: str) -> str:
        try:
            AllowedHosts(text.split(","))
        except ValueError as error:
            raise ValueError(f"give names, *.name and networks, with commas between: {error}") from None
        return text

    @field_validator("database_url")
    @classmethod
    def _sqlite_file(cls, url: str) -> str:
        if not url.startswith("sqlite:///") or len(url) == len("sqlite:///") or ":memory:" in url:
            raise ValueError("give sqlite:///FILE (three slashes and a relative path, or four and an absolute one)")
        return url


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the environment. Raises SettingsError with a sentence for each fault."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    given = {name for name in environ if name.startswith(PREFIX)}
    if unknown := sorted(given - known - CLIENTS):
        raise SettingsError("\n".join(_unknown(name, known) for name in unknown))
    values = {name.removeprefix(PREFIX).lower(): environ[name] for name in given & known}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise SettingsError(
            "\n".join(f"{PREFIX}{str(f['loc'][0]).upper()}: {_said(f['msg'])}" for f in faults)
        ) from None


def _unknown(name: str, known: set[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}."
    return f"{name} is no setting of the service: {hint}"


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")
