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

from app.net.addresses import Networks, check_secure_url
from app.net.callback_policy import CallbackPolicy
from app.store import urls
from blocklist.model.limits import Limits
from blocklist.model.time import to_millis

PREFIX: Final = "BLOCKLIST_"
CLIENT_SETTINGS: Final = frozenset(
    PREFIX + name for name in ("URL", "TOKEN", "TOKEN_FILE", "TIMEOUT", "DEFAULT_DURATION")
)
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

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    host: Annotated[
        str, Field(description="The address to listen on. Beyond loopback it takes `BLOCKLIST_AUTH=tokens`.")
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="The port to listen on; 0 is any that is free.")] = 8224
    auth: Annotated[
        Literal["off", "tokens"],
        Field(description="`tokens`: who asks needs one. `off`: anybody may do anything; on a loopback address only."),
    ] = "off"
    admin_token_file: Annotated[
        str, Field(description="A file with a token of an admin; made at the start if it is not there.")
    ] = ""
    trusted_proxies: Annotated[
        str, Field(description="Networks of proxies whose `X-Forwarded-User` names the author, with commas between.")
    ] = ""
    oidc_issuer: Annotated[str, Field(description="The URL of an OpenID Connect issuer whose JWTs count, too.")] = ""
    oidc_audience: Annotated[str, Field(description="The audience that these JWTs must be for.")] = ""
    oidc_roles_claim: Annotated[
        str, Field(min_length=1, description="Where they say which roles one has; dots lead into objects.")
    ] = "roles"
    oidc_name_claim: Annotated[
        str, Field(min_length=1, description="Where they say who one is; without it `sub` does.")
    ] = "preferred_username"
    database_url: Annotated[
        str,
        Field(
            repr=False,
            description="What keeps the list: `sqlite:///FILE` (three slashes and a relative path, or four and an"
            " absolute one), or `postgresql://USER@HOST/DATABASE` for several replicas.",
        ),
    ] = "sqlite:///blocklist.db"
    database_timeout: Annotated[
        Duration,
        Field(ge=timedelta(seconds=0.1), description="PostgreSQL that says nothing for so long counts as away."),
    ] = timedelta(seconds=2)
    log_format: Annotated[Literal["console", "json"], Field(description="Log lines for eyes, or `json`.")] = "console"
    telemetry: Annotated[
        Literal["off", "otlp"], Field(description="`otlp`: traces and times of requests go where `OTEL_…` says.")
    ] = "off"
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
        Duration,
        Field(ge=timedelta(0), description="JobMasters are pushed to after ResourceManagers, or after so long."),
    ] = timedelta(seconds=1)
    forget_listeners: Annotated[
        Duration, Field(ge=timedelta(seconds=1), description="Listeners are forgotten so long after their lease.")
    ] = timedelta(days=1)
    evidence_applications: Annotated[
        int, Field(ge=0, description="A node that so many applications call bad is blocked for all; 0 is never.")
    ] = 2
    evidence_window: Annotated[
        Duration, Field(ge=timedelta(seconds=1), description="All of them must have said so within this time.")
    ] = timedelta(seconds=60)
    alertmanager_node_label: Annotated[
        str,
        Field(
            pattern="^[a-zA-Z_][a-zA-Z0-9_]*$",
            description="Alerts name the node in this label, else in `instance`, before the port.",
        ),
    ] = "node"
    alertmanager_duration: Annotated[
        Duration,
        Field(ge=timedelta(seconds=1), description="A post about a firing alert blocks its node for so long."),
    ] = timedelta(hours=1)
    callback_hosts: Annotated[
        str, Field(description="Where pushes may go: names, `*.name` and networks, with commas between.")
    ] = "127.0.0.0/8,::1/128"
    max_blocked: Annotated[
        int, Field(ge=0, description="At most so many nodes may be blocked at once; 0 is no limit.")
    ] = 0
    max_blocked_share: Annotated[
        float,
        Field(gt=0, le=1, description="At most such a share of the nodes that listeners name may be; 1 is no limit."),
    ] = 1.0
    max_blocked_by_author: Annotated[
        int, Field(ge=0, description="At most so many nodes may be blocked by one author; 0 is no limit.")
    ] = 0
    longest_block_operator: Annotated[
        Duration, Field(ge=timedelta(0), description="An operator may block for at most so long; 0 is no limit.")
    ] = timedelta(0)
    longest_block_admin: Annotated[
        Duration, Field(ge=timedelta(0), description="An admin may block for at most so long; 0 is no limit.")
    ] = timedelta(0)
    header_timeout: Annotated[
        Duration, Field(ge=timedelta(seconds=0.1), description="The head of a request must be there within this time.")
    ] = timedelta(seconds=10)
    body_timeout: Annotated[
        Duration, Field(ge=timedelta(seconds=0.1), description="Its body must be there within this time after it.")
    ] = timedelta(seconds=30)
    max_connections: Annotated[
        int, Field(ge=1, description="At most so many connections may be open; less if fewer files may be.")
    ] = 20_000
    max_waits_per_client: Annotated[
        int, Field(ge=1, description="At most so many watches and waiting requests of one client may be open.")
    ] = 2_000
    tls_cert: Annotated[str, Field(description="A PEM file with the certificate and its chain: serve HTTPS.")] = ""
    tls_key: Annotated[str, Field(description="A PEM file with its key, not encrypted.")] = ""
    fast_path: Annotated[
        bool, Field(description="Answer the two plainest requests below ASGI; `false` to look for a fault there.")
    ] = True

    @property
    def limits(self) -> Limits:
        """The guard rails, as the rules have them."""
        return Limits(
            max_blocked=self.max_blocked,
            max_share=self.max_blocked_share,
            max_by_author=self.max_blocked_by_author,
            longest_operator_ms=to_millis(self.longest_block_operator),
            longest_admin_ms=to_millis(self.longest_block_admin),
        )

    @field_validator("callback_hosts")
    @classmethod
    def _hosts(cls, text: str) -> str:
        try:
            CallbackPolicy(text.split(","))
        except ValueError as error:
            raise ValueError(f"give names, *.name and networks, with commas between: {error}") from None
        return text

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, text: str) -> str:
        try:
            Networks(text.split(","))
        except ValueError as error:
            raise ValueError(f"give networks such as 10.0.0.0/8, with commas between: {error}") from None
        return text

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, url: str) -> str:
        return check_secure_url(url) if url else url

    @field_validator("database_url")
    @classmethod
    def _database(cls, url: str) -> str:
        return urls.check_url(url)


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the environment. Raises SettingsError with a sentence for each fault."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    given = {name for name in environ if name.startswith(PREFIX)}
    if unknown := sorted(given - known - CLIENT_SETTINGS):
        raise SettingsError("\n".join(_unknown_name(name, known) for name in unknown))
    values = {name.removeprefix(PREFIX).lower(): environ[name] for name in given & known}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise SettingsError(
            "\n".join(f"{PREFIX}{str(f['loc'][0]).upper()}: {_message(f['msg'])}" for f in faults)
        ) from None


def _unknown_name(name: str, known: set[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}."
    return f"{name} is no setting of the service: {hint}"


def _message(message: str) -> str:
    return message.removeprefix("Value error, ")
