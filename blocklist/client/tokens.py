"""TokenAdministration: creating and revoking tokens, for admins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocklist.client.response import Requester, parse_body
from blocklist.model.node import PERMANENT, check_node_id
from blocklist.model.time import parse_duration_or_forever

if TYPE_CHECKING:
    from blocklist.model.roles import NewToken, Role, Token
    from blocklist.wire.tokens import IdentityBody


class TokenAdministration(Requester):
    """The part of BlocklistClient that manages tokens, which requires the role admin."""

    def whoami(self) -> tuple[str | None, Role]:
        """The name of the credentials, which is the author of their changes (None without a name), and their role."""
        from blocklist.model.roles import Role

        identity = self._identity()
        return identity.name, Role(identity.role)

    def default_duration(self) -> int:
        """Milliseconds of a block for which the operator gives no end; PERMANENT if it has none."""
        return parse_duration_or_forever(self._identity().default_duration)

    def _identity(self) -> IdentityBody:
        from blocklist.wire.tokens import IdentityBody

        return parse_body(IdentityBody, self._request("GET", "/whoami").object())

    def create_token(
        self, name: str, role: Role, *, end: int = PERMANENT, owners: Sequence[str] | None = None
    ) -> NewToken:
        """Create a token that is valid until `end` (Unix milliseconds); its text is returned only here.

        `owners` are the owners whose claims a token of an operator may change, with a final `*` those that begin so;
        None for all. Raises InvalidError for a name without the form of a node id, an end that is not in the future, or
        what is not an owner.
        """
        from blocklist.model.roles import check_token_name
        from blocklist.wire.tokens import NewTokenBody

        body: dict[str, object] = {"name": check_token_name(name), "role": role.value, "endTimestamp": str(end)}
        if owners is not None:
            body["owners"] = list(owners)
        return parse_body(NewTokenBody, self._request("POST", "/tokens", json=body).object()).value()

    def tokens(self) -> list[Token]:
        """All tokens, including revoked and expired ones, the oldest first."""
        from blocklist.wire.tokens import TokensBody

        return [token.value() for token in parse_body(TokensBody, self._request("GET", "/tokens").object()).tokens]

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token at once. Raises NotFoundError, and ConflictError for the last token of an admin."""
        self._request("DELETE", f"/tokens/{check_node_id(token_id)}")
