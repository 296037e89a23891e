"""Tokens: who may do what, for admins."""

from __future__ import annotations

from blocklist.client.requester import Requester
from blocklist.client.response import parse_body
from blocklist.model.node import PERMANENT, check_node_id
from blocklist.model.roles import NewToken, Role, Token, check_token_name
from blocklist.wire.tokens import IdentityBody, NewTokenBody, TokensBody


class TokenAdministration(Requester):
    """The part of BlocklistClient that makes and revokes tokens, which only an admin may, and asks who one is."""

    def whoami(self) -> tuple[str | None, Role]:
        """The name that is the author of one's changes, None where nobody knows it, and one's role."""
        identity = parse_body(IdentityBody, self._request("GET", "/whoami").object())
        return identity.name, Role(identity.role)

    def create_token(self, name: str, role: Role, *, end: int = PERMANENT) -> NewToken:
        """A new token, valid until `end` (Unix milliseconds); its text is shown this once.

        Raises InvalidError for a name that is not written like a node id, and for an end that is not to come.
        """
        body = {"name": check_token_name(name), "role": role.value, "endTimestamp": str(end)}
        return parse_body(NewTokenBody, self._request("POST", "/tokens", json=body).object()).value()

    def tokens(self) -> list[Token]:
        """All tokens that there ever were, the oldest first."""
        return [token.value() for token in parse_body(TokensBody, self._request("GET", "/tokens").object()).tokens]

    def revoke_token(self, token_id: str) -> None:
        """From now on the token is not valid. Raises NotFoundError, and ConflictError for the last one of an admin."""
        self._request("DELETE", f"/tokens/{check_node_id(token_id)}")
