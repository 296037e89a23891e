"""The bodies of /tokens, /whoami and /issuers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from blocklist.model.claims import ANONYMOUS, NewToken, Role, Token
from blocklist.model.node import DEFAULT_DURATION, PERMANENT
from blocklist.wire.body import Body, Doc, Json, Millis

RoleName = Literal["reader", "listener", "manager", "operator", "admin"]


@dataclass(kw_only=True)
class _TokenFields(Body):
    """The fields that a token has from the start."""

    id: str
    name: str
    role: RoleName
    created_at: Millis
    created_by: str | None
    end_timestamp: Millis | None
    owners: Annotated[list[str] | None, Doc("The owners whose claims it may change; null for all.")] = None
    listeners: Annotated[list[str] | None, Doc("The ids under which it may register; null for all.")] = None

    def _token(self, **state: int | None) -> Token:
        return Token(
            id=self.id,
            name=self.name,
            role=Role(self.role),
            created_at=self.created_at,
            created_by=self.created_by,
            end=PERMANENT if self.end_timestamp is None else self.end_timestamp,
            owners=None if self.owners is None else tuple(self.owners),
            listeners=None if self.listeners is None else tuple(self.listeners),
            **state,
        )


@dataclass(kw_only=True)
class CreatedTokenBody(_TokenFields):
    """A token that was just created."""

    token: Annotated[str, Doc("Send as `Authorization: Bearer`; shown only once.")] = field(repr=False)

    def value(self) -> NewToken:
        return NewToken(token=self._token(), text=self.token)


@dataclass(kw_only=True)
class TokenBody(_TokenFields):
    """A token without its secret."""

    revoked_at: Millis | None
    last_used_at: Annotated[Millis | None, Doc("May be up to five minutes late.")]

    def value(self) -> Token:
        return self._token(revoked_at=self.revoked_at, last_used_at=self.last_used_at)


@dataclass(kw_only=True)
class IdentityBody(Body):
    """The name and the role of the credentials, and what the service recommends to its clients."""

    name: str | None
    role: RoleName
    owner: Annotated[str, Doc("The owner of claims that a request makes without naming one.")] = ANONYMOUS
    owners: Annotated[list[str] | None, Doc("The owners whose claims it may change; null for all.")] = None
    version: Annotated[str | None, Doc("The version of the service.")] = None
    default_duration: Annotated[
        str,
        Doc("Duration of a block for which the operator gives no end, such as `4h`, or `forever`."),
    ] = DEFAULT_DURATION
    ask_above: Annotated[
        int,
        Doc("People should be asked before a change of more nodes than this: a tenth of the known ones, at most 20."),
    ] = 20


@dataclass(kw_only=True)
class IssuerBody(Body):
    """An OpenID Connect issuer at which people log in with the command."""

    issuer: Annotated[str, Doc("The issuer's URL, which has a discovery document.")]
    client_id: Annotated[str, Doc("The public client with which the device flow works.")]
    audience: Annotated[str, Doc("The audience of access tokens that the service accepts.")]
    scope: Annotated[str, Doc("What a log-in asks the issuer for.")]


@dataclass(kw_only=True)
class IssuersBody(Body):
    """Where people log in with the command."""

    issuers: list[IssuerBody]


@dataclass(kw_only=True)
class TokensBody(Body):
    """All tokens."""

    tokens: list[TokenBody]


def new_token_body(created: NewToken) -> Json:
    """A new token in a response."""
    return {**_fields(created.token), "token": created.text}


def token_body(token: Token) -> Json:
    """A token in the list."""
    return {
        **_fields(token),
        "revokedAt": _optional_millis(token.revoked_at),
        "lastUsedAt": _optional_millis(token.last_used_at),
    }


def _fields(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "createdAt": str(token.created_at),
        "createdBy": token.created_by,
        "endTimestamp": None if token.end == PERMANENT else str(token.end),
        "owners": None if token.owners is None else list(token.owners),
        "listeners": None if token.listeners is None else list(token.listeners),
    }


def _optional_millis(timestamp: int | None) -> str | None:
    return None if timestamp is None else str(timestamp)
