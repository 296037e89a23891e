"""Settings from the environment, prefix BLOCKLIST_. An unknown name stops the start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import durationpy
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.logs import redact
from app.net.addresses import CallbackPolicy, HostPolicy, Networks, check_secure_url
from app.net.urls import DEFAULT_TICKET_PATTERN, TicketLinks, make_senders, parse_pattern
from app.secret_files import read_secret
from app.store.database import check_url, redacted
from blocklist.model.claims import MAX_DURATION_MS, Grants, RepeatRule
from blocklist.model.evidence import BLOCK_MS, TTL_MS
from blocklist.model.limits import Limits, parse_domain_limits
from blocklist.model.node import DEFAULT_DURATION, PERMANENT, exact_duration, parse_duration_or_forever, to_millis

PREFIX: Final = "BLOCKLIST_"
CLIENT_SETTINGS: Final = frozenset(PREFIX + name for name in ("URL", "TOKEN", "TOKEN_FILE", "CONTEXT", "TIMEOUT"))
"""Settings of the clients, which the service ignores."""

_LOOPBACK: Final = "127.0.0.0/8,::1/128"
_LONGEST_BLOCK: Final = timedelta(days=30)
_ROOT_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+", re.ASCII)
_MAX_ROOT_PATH: Final = 200


def each_of(text: str) -> list[str]:
    """What commas separate."""
    return [part.strip() for part in text.split(",") if part.strip()]


class OidcIssuer(NamedTuple):
    """An OpenID Connect issuer, and the service's clients there."""

    url: str
    audience: str
    client_id: str
    client_secret: str
    command_client_id: str

    @property
    def audiences(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.audience, self.client_id, self.command_client_id))))


class SettingsError(Exception):
    """A setting is missing or invalid; the message is for the operator."""


def _duration(value: object) -> object:
    """Parse a duration as Go writes it, with days: `90s`, `2h`, `7d`."""
    if not isinstance(value, str):
        return value
    try:
        parsed: timedelta = durationpy.from_str(value)
    except durationpy.DurationError:
        raise ValueError("give a duration such as 90s, 2h or 7d") from None
    return parsed


Duration = Annotated[timedelta, BeforeValidator(_duration)]


def _checked(check: Callable[[str], object], expected: str = "") -> AfterValidator:
    """A text stays as it is if `check` raises no ValueError; `expected` is said before the reason."""

    def validate(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise ValueError(f"{expected}: {error}" if expected else str(error)) from None
        return text

    return AfterValidator(validate)


def _of_parts(check: Callable[[list[str]], object]) -> Callable[[str], object]:
    return lambda text: check(text.split(","))


_Hosts = Annotated[str, _checked(_of_parts(CallbackPolicy), "give comma-separated names, *.name and networks")]


class Settings(BaseSettings):
    """What an operator can set. The docstrings are the descriptions in docs/settings.md."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on; `::` is every address, of IPv4 too. Any but loopback needs `BLOCKLIST_AUTH=tokens`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8224
    """Port to listen on; 0 chooses a free one."""
    root_path: str = ""
    """Path below which a proxy offers the service, as in `/tools/blocklist`; the proxy may strip it or keep it."""
    public_url: str = ""
    """URL at which browsers reach the service, root path included; by default that of the request."""
    auth: Literal["off", "tokens"] = "off"
    """`tokens`: every request needs a token. `off`: anyone may do anything; allowed on a loopback address only."""
    allowed_hosts: Annotated[
        str, _checked(_of_parts(HostPolicy), "give comma-separated host names and addresses, without ports")
    ] = ""
    """Comma-separated names and addresses that `Host` may have with `BLOCKLIST_AUTH=off`, besides loopback ones."""
    admin_token_file: str = ""
    """File with the token of an admin; created at the start if it is missing."""
    trusted_proxies: Annotated[
        str, _checked(_of_parts(Networks), "give comma-separated networks such as 10.0.0.0/8")
    ] = ""
    """Comma-separated networks of the proxies whose `X-Forwarded-User` names the author."""
    oidc_issuer: str = ""
    """URL of an OpenID Connect issuer whose JWTs are accepted as well; several are separated by commas."""
    oidc_audience: str = ""
    """Audience that these JWTs must have, one for all issuers or one for each; by default the ids of the clients."""
    oidc_client_id: str = ""
    """Id of the client at the issuer with which people log in on the page; one for all issuers or one for each."""
    oidc_client_secret: Annotated[str, Field(repr=False)] = ""
    """Secret of that client; one for all issuers or one for each. A public client has none."""
    oidc_client_secret_file: str = ""
    """File with this secret, instead of `BLOCKLIST_OIDC_CLIENT_SECRET`; it is read again when it changes."""
    oidc_command_client_id: str = ""
    """Id of the public client with which `blocklist login` works (device flow); one for all issuers or one for each."""
    oidc_scope: Annotated[str, Field(min_length=1)] = "openid profile"
    """What a log-in asks the issuer for; with Entra ID and others `openid profile offline_access`."""
    oidc_roles_claim: Annotated[str, Field(min_length=1)] = "roles"
    """Claim of these JWTs with the roles or groups; dots lead into nested objects, and may be in names as well."""
    oidc_roles: Annotated[str, _checked(Grants.parse)] = ""
    """Comma-separated roles of groups in that claim: `sre=operator,platform=admin,alerts=operator:alertmanager/*`."""
    oidc_name_claim: Annotated[str, Field(min_length=1)] = "preferred_username"
    """Claim of these JWTs with the author's name; without it, `sub` is used."""
    service_account_audience: str = ""
    """In a Kubernetes pod: accept tokens of the cluster's ServiceAccounts that are for this audience."""
    service_account_roles: Annotated[str, _checked(Grants.of_accounts)] = ""
    """Comma-separated roles of ServiceAccounts, as in `spark/driver=listener,ops/*=operator`; without one, 403."""
    database_url: Annotated[
        str,
        Field(
            repr=False,
            description="Database of the list: `sqlite:///FILE` (three slashes and a relative path, or four and an"
            " absolute one), or `postgresql://USER@HOST/DATABASE` for several replicas.",
        ),
        _checked(check_url),
    ] = "sqlite:///blocklist.db"
    database_url_file: str = ""
    """File with the URL, instead of `BLOCKLIST_DATABASE_URL`; new connections have the user and password in it then."""
    database_timeout: Annotated[Duration, Field(ge=timedelta(seconds=0.1))] = timedelta(seconds=2)
    """PostgreSQL is considered unavailable if it does not respond within this time; changes then get 503."""
    log_format: Literal["console", "json"] = "console"
    """Format of log lines: `console` for people, `json` for programs."""
    telemetry: Literal["off", "otlp"] = "off"
    """`otlp`: export traces and durations of requests; where to, the `OTEL_…` variables say."""
    log_max_changes: Annotated[int, Field(ge=1000)] = 1_000_000
    """Maximum number of changes in the change log (at least 1,000); older ones are deleted."""
    log_max_age: Annotated[Duration, Field(ge=timedelta(hours=1))] = timedelta(days=90)
    """Changes older than this are deleted from the change log, except for the last 1,000."""
    heartbeat: Annotated[Duration, Field(ge=timedelta(seconds=0.1))] = timedelta(seconds=10)
    """Interval at which an empty push (a heartbeat) is sent to a listener that has nothing new to receive."""
    evidence_applications: Annotated[int, Field(ge=0)] = 2
    """A node is blocked when this number of applications, with a token each, have evidence against it; 0 is never."""
    evidence_max_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the confirmed nodes evidence may block, of six or more at least two. `10%` is 0.1; 1 is no limit."""
    alertmanager_node_label: Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "node"
    """Label of an alert that names the node; without it, `instance` does, without its port."""
    alertmanager_duration: Annotated[Duration, Field(ge=timedelta(seconds=1))] = timedelta(hours=1)
    """Duration of the block that each notification of a firing alert makes."""
    alertmanager_minimum: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(minutes=5)
    """Minimum duration of the block of an alert, even if it resolves before; longer if it is repeated. 0 is none."""
    repeat_window: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(days=30)
    """Each automatic block of a node within this time doubles the duration of the next one; 0 disables this."""
    callback_hosts: _Hosts | None = None
    """Hosts that may receive pushes: names, `*.name`, networks. By default loopback; none with authentication."""
    max_blocked: Annotated[int, Field(ge=0)] = 0
    """Maximum number of blocked nodes; a request that would exceed it gets 409. 0 is no limit."""
    max_blocked_share: Annotated[float | None, Field(gt=0, le=1)] = None
    """Maximum share of known nodes to be blocked, rounded up; 0.5 with authentication. `20%` is 0.2; 1 is no limit."""
    max_blocked_by_author: Annotated[int, Field(ge=0)] = 0
    """Maximum number of nodes blocked by one author; a request that would exceed it gets 409. 0 is no limit."""
    max_blocked_per: Annotated[str, _checked(parse_domain_limits)] = ""
    """Maximum number, or percent, of the nodes with the same label that may be blocked, as in `rack=2,zone=10%`."""
    longest_block_operator: Annotated[Duration | None, Field(ge=timedelta(0))] = None
    """Maximum duration of an operator's block. 0 is no limit; by default `30d` with authentication, or for ever."""
    longest_block_admin: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(0)
    """Maximum duration of a block by an admin; a longer one gets 409. 0 is no limit."""
    max_connections: Annotated[int, Field(ge=1)] = 20_000
    """Maximum number of open connections, and at most 90 % of the open-file limit; further ones get 503."""
    max_waits_per_client: Annotated[int, Field(ge=1)] = 2_000
    """Maximum number of open watches and waiting requests of one client; further ones get 503."""
    max_listeners_per_token: Annotated[int, Field(ge=1)] = 1_000
    """Maximum number of listeners with one token; a further one replaces the one that lapsed first, or gets 429."""
    max_report_bytes_per_token: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    """Maximum size in bytes of what the listeners with one token report; a heartbeat beyond it gets 413."""
    nodes_file: str = ""
    """CSV file with nodes that nobody else reports: `id,names,addresses,labels`; it is read again when it changes."""
    tls_cert: str = ""
    """PEM file with the certificate and its chain; with it the service serves HTTPS."""
    tls_key: str = ""
    """PEM file with the private key of the certificate, not encrypted."""
    default_duration: Annotated[str, _checked(parse_duration_or_forever)] = DEFAULT_DURATION
    """Duration, or `forever`, of blocks without an end in the command and on the page; at most the longest block."""
    notify_url: Annotated[
        str,
        Field(
            repr=False,
            description="Comma-separated URLs, as the library apprise reads them, to which notices of blocked,"
            " evacuated and freed nodes, refusals and drift are sent.",
        ),
        _checked(make_senders),
    ] = ""
    notify_url_file: str = ""
    """File with the URLs, instead of `BLOCKLIST_NOTIFY_URL`; it is read again when it changes."""
    ticket_url: Annotated[str, _checked(lambda url: TicketLinks.parse(url, DEFAULT_TICKET_PATTERN))] = ""
    """URL of a ticket with `{id}` in it; ids of tickets in causes are then links on the page."""
    ticket_pattern: Annotated[str, _checked(parse_pattern)] = DEFAULT_TICKET_PATTERN
    """Regular expression (Python) of the ids of tickets; used with `BLOCKLIST_TICKET_URL`."""
    fast_path: bool = True
    """Serve plain GETs of the list and table, and single-node PUTs, on the fast path; `false` helps debugging."""

    @property
    def recorded(self) -> dict[str, str]:
        """All settings by name, as the audit log has them: of a secret it says only whether it is set."""
        return {name: self._recorded(name) for name in type(self).model_fields}

    def _recorded(self, name: str) -> str:
        value = getattr(self, name)
        if name == "database_url":
            return redacted(value)
        if not type(self).model_fields[name].repr:
            return "set" if value else ""
        if isinstance(value, timedelta):
            return exact_duration(to_millis(value))
        text = "" if value is None else str(value)
        return redact(text) if "://" in text else text

    @property
    def limits(self) -> Limits:
        return Limits(
            max_blocked=self.max_blocked,
            max_share=self._max_share,
            max_by_author=self.max_blocked_by_author,
            longest_operator_ms=self._longest_operator_ms,
            may_be_permanent=self._is_authenticated and self.longest_block_operator is None,
            longest_admin_ms=to_millis(self.longest_block_admin),
            max_per_domain=parse_domain_limits(self.max_blocked_per),
        )

    @property
    def _is_authenticated(self) -> bool:
        return self.auth != "off"

    @property
    def _max_share(self) -> float:
        if self.max_blocked_share is None:
            return 0.5 if self._is_authenticated else 1.0
        return self.max_blocked_share

    @property
    def _longest_operator_ms(self) -> int:
        if self.longest_block_operator is None:
            return to_millis(_LONGEST_BLOCK) if self._is_authenticated else 0
        return to_millis(self.longest_block_operator)

    def _within_longest_block(self, duration_ms: int) -> int:
        """The duration, or the longest block of an operator if that is shorter."""
        return min(filter(None, (duration_ms, self._longest_operator_ms)))

    @property
    def default_end(self) -> str:
        """The default duration, or the longest block if that is shorter: a block without an end is never refused."""
        limits = self.limits
        longest = min(filter(None, (limits.longest_operator_ms, limits.longest_admin_ms)), default=PERMANENT)
        duration = parse_duration_or_forever(self.default_duration)
        permanent = duration == PERMANENT and limits.may_be_permanent and not limits.longest_admin_ms
        return self.default_duration if permanent or duration <= longest else exact_duration(longest)

    @property
    def repeat_rule(self) -> RepeatRule:
        return RepeatRule(
            window=to_millis(self.repeat_window),
            max_duration=self._within_longest_block(MAX_DURATION_MS),
        )

    @property
    def evidence_duration_ms(self) -> int:
        """An hour, or the longest block of an operator if that is shorter, so that no such limit refuses the block.

        Never shorter than the evidence is valid: the limit allows a minute more than it says.
        """
        return max(TTL_MS, self._within_longest_block(BLOCK_MS))

    @property
    def ticket_links(self) -> TicketLinks:
        return TicketLinks.parse(self.ticket_url, self.ticket_pattern)

    @property
    def callback_policy(self) -> CallbackPolicy:
        default = "" if self._is_authenticated else _LOOPBACK
        return CallbackPolicy((default if self.callback_hosts is None else self.callback_hosts).split(","))

    @field_validator("host")
    @classmethod
    def _host(cls, text: str) -> str:
        """As in a URL, an IPv6 address may have brackets."""
        return text[1:-1] if text.startswith("[") and text.endswith("]") else text

    @field_validator("root_path")
    @classmethod
    def _root_path(cls, path: str) -> str:
        path = path.rstrip("/")
        if path and (len(path) > _MAX_ROOT_PATH or not _ROOT_PATH.fullmatch(path)):
            raise ValueError(
                "give a path such as /tools/blocklist: it begins with /, has only letters, digits and . _ ~ - between"
                f" its slashes, and at most {_MAX_ROOT_PATH} characters"
            )
        return path

    @field_validator("evidence_max_share", "max_blocked_share", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        """`20%` is 0.2."""
        text = value.strip() if isinstance(value, str) else ""
        try:
            return float(text.removesuffix("%")) / 100 if text.endswith("%") else value
        except ValueError:
            raise ValueError("give a share such as 0.2 or 20%") from None

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, urls: str) -> str:
        issuers = [check_secure_url(url).rstrip("/") for url in each_of(urls)]
        if len(set(issuers)) < len(issuers):
            raise ValueError("an issuer is given twice")
        return urls

    @property
    def oidc_issuers(self) -> list[OidcIssuer]:
        """The issuers. Raises SettingsError if there is not one value of a setting for all of them, or for each."""
        issuers = each_of(self.oidc_issuer)
        names = ("oidc_audience", "oidc_client_id", "oidc_client_secret", "oidc_command_client_id")
        values = [self._for_each_issuer(name, len(issuers)) for name in names]
        return [OidcIssuer(*fields) for fields in zip(issuers, *values, strict=True)]

    def _for_each_issuer(self, name: str, count: int) -> list[str]:
        text = getattr(self, name)
        given = [text] if count == 1 else each_of(text) or [""]
        if count and len(given) not in (1, count):
            raise SettingsError(
                f"{PREFIX}{name.upper()}: give one value for all {count} issuers, or one for each, in their order;"
                f" there are {len(given)}."
            )
        return given if len(given) == count else given * count

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, url: str, info: ValidationInfo) -> str:
        """Its path is the root path: the issuer sends browsers back to it."""
        if not url:
            return url
        url = check_secure_url(url).rstrip("/")
        root_path = info.data.get("root_path")  # none if it is refused itself
        if root_path is not None and urlsplit(url).path != root_path:
            own = urlsplit(url)._replace(path=root_path, query="", fragment="").geturl()
            raise ValueError(f"its path must be that of {PREFIX}ROOT_PATH: {own}")
        return url


SECRETS: Final = tuple(name for name in Settings.model_fields if f"{name}_file" in Settings.model_fields)
"""Settings that may be given in a file instead."""


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the environment. Raises SettingsError with one line for each invalid setting."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    given = {name for name in environ if name.startswith(PREFIX)}
    lines = [_unknown_name(name, known) for name in sorted(given - known - CLIENT_SETTINGS)]
    values = {name.removeprefix(PREFIX).lower(): environ[name] for name in given & known}
    names = {name: PREFIX + name.upper() for name in Settings.model_fields}
    for name in SECRETS:
        setting = names[f"{name}_file"]
        if not (path := values.get(f"{name}_file")):
            continue
        if values.get(name):
            lines.append(f"{setting}: {names[name]} is set, too: set one of the two.")
            continue
        names[name] = f"{setting}: {path}"
        try:
            values[name] = read_secret(path)
        except ValueError as error:
            lines.append(f"{setting}: {error}")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines += [f"{names.get(str(f['loc'][0]), '')}: {_message(f['msg'])}" for f in faults]
    if lines:
        raise SettingsError("\n".join(lines))
    return settings


_SERVICE_LINK: Final = re.compile(r"BLOCKLIST_(SERVICE_(HOST|PORT\w*)|PORT_[0-9]+_\w+)", re.ASCII)
"""Variables that Kubernetes sets in each pod of a namespace with a Service called `blocklist`."""


def _unknown_name(name: str, known: set[str]) -> str:
    if _SERVICE_LINK.fullmatch(name):
        return (
            f"{name} is not a setting of the service: Kubernetes sets it for a Service called blocklist; set"
            " `enableServiceLinks: false` in the pod's spec."
        )
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(sorted(known))}."
    return f"{name} is not a setting of the service: {hint}"


def _message(message: str) -> str:
    return message.removeprefix("Value error, ")
