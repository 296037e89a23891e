"""Tokens: who may do what, for admins."""

from __future__ import annotations

from blocklist.client.requester import Asks
from blocklist.client.response import parsed
from blocklist.model.node import PERMANENT, check_node_id
from blocklist.model.roles import Access, NewToken, Token, check_name
from blocklist.wire.tokens import NewTokenBody, TokensBody, WhoBody


class Tokens(Asks):
    """The part of BlocklistClient that makes and revokes tokens, which only an admin may, and asks who one is."""

    def whoami(self) -> tuple[str | None, Access]:
        """The name that is the author of one's changes, None where nobody knows it, and one's role."""
        who = parsed(WhoBody, self._ask("GET", "/whoami").object())
        return who.name, Access(who.role)

    def create_token(self, name: str, access: Access, *, end: int = PERMANENT) -> NewToken:
        """A new token, valid until `end` (Unix milliseconds); its text is shown this once.

        Raises InvalidError for a name that is not written like a node id, and for an end that is not to come.
        """
        body = {"name": check_name(name), "role": access.value, "endTimestamp": str(end)}
        return parsed(NewTokenBody, self._ask("POST", "/tokens", json=body).object()).value()

    def tokens(self) -> list[Token]:
        """All tokens that there ever were, the oldest first."""
        return [token.value() for token in parsed(TokensBody, self._ask("GET", "/tokens").object()).tokens]

    def revoke_token(self, token_id: str) -> None:
        """From now on the token is not valid. Raises NotFoundError, and ConflictError for the last one of an admin."""
        self._ask("DELETE", f"/tokens/{check_node_id(token_id)}")
