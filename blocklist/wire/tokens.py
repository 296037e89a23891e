"""The bodies of /tokens and /whoami."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from blocklist.model.claims import check_owner_pattern
from blocklist.model.durations import DEFAULT_DURATION
from blocklist.model.node import PERMANENT
from blocklist.model.roles import NewToken, Role, Token, check_token_name
from blocklist.wire.body import ID_PATTERN, Body, MillisIn, MillisOut
from blocklist.wire.json import Json

RoleName = Literal["reader", "listener", "operator", "admin"]
Name = Annotated[str, AfterValidator(check_token_name), Field(json_schema_extra={"pattern": ID_PATTERN})]


MAX_OWNERS: Final = 32
OwnerPattern = Annotated[str, AfterValidator(check_owner_pattern)]


class TokenRequest(Body):
    """The token to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "on-call", "role": "operator", "endTimestamp": "4102444800000"}]},
    )

    name: Annotated[Name, Field(description="Author of the changes made with the token.")]
    role: Annotated[RoleName, Field(description="Each role includes the ones before it.")]
    end_timestamp: Annotated[
        MillisIn, Field(description="When the token expires, in Unix milliseconds; without it, never.")
    ] = PERMANENT
    owners: Annotated[
        list[OwnerPattern] | None,
        Field(
            min_length=1,
            max_length=MAX_OWNERS,
            description="Only for an operator: the owners whose claims it may change; with a final `*`, those that"
            " begin so. Without it, all.",
        ),
    ] = None

    @model_validator(mode="after")
    def _restricts_an_operator(self) -> Self:
        if self.owners is not None and self.role != "operator":
            raise ValueError("owners restrict a token with the role operator only")
        return self


class _TokenFields(Body):
    """The fields that a token has from the start."""

    model_config = ConfigDict(extra="ignore")

    id: str
    name: str
    role: RoleName
    created_at: MillisOut
    created_by: str | None
    end_timestamp: MillisOut | None
    owners: Annotated[list[str] | None, Field(description="The owners whose claims it may change; null for all.")] = (
        None
    )

    def _token(self, **state: int | None) -> Token:
        return Token(
            id=self.id,
            name=self.name,
            role=Role(self.role),
            created_at=self.created_at,
            created_by=self.created_by,
            end=PERMANENT if self.end_timestamp is None else self.end_timestamp,
            owners=None if self.owners is None else tuple(self.owners),
            **state,
        )


class NewTokenBody(_TokenFields):
    """A token that was just created."""

    token: Annotated[str, Field(repr=False, description="Send as `Authorization: Bearer`; shown only once.")]

    def value(self) -> NewToken:
        return NewToken(token=self._token(), text=self.token)


class TokenBody(_TokenFields):
    """A token without its secret."""

    revoked_at: MillisOut | None
    last_used_at: Annotated[MillisOut | None, Field(description="May be up to a minute late.")]

    def value(self) -> Token:
        return self._token(revoked_at=self.revoked_at, last_used_at=self.last_used_at)


class IdentityBody(Body):
    """The name and the role of the credentials, and what the service recommends to its clients."""

    name: str | None
    role: RoleName
    default_duration: Annotated[
        str,
        Field(description="Duration of a block for which the operator gives no end, such as `4h`, or `forever`."),
    ] = DEFAULT_DURATION


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
    }


def _optional_millis(timestamp: int | None) -> str | None:
    return None if timestamp is None else str(timestamp)
