"""token create, token list and token revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.environment import connect, now_ms, print_context
from blocklist.cli.messages import format_end
from blocklist.cli.output import (
    OutputFormat,
    OutputOptions,
    format_json,
    print_items,
    print_lines,
    print_message,
    print_stderr,
)
from blocklist.model.node import PERMANENT
from blocklist.model.roles import Role

if TYPE_CHECKING:
    from blocklist.model.roles import NewToken

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Author of the changes made with the token.")]
TokenId = Annotated[str, typer.Argument(metavar="ID", help="Token id; see `token list`.")]
TokenOwners = Annotated[
    list[str] | None,
    typer.Option(
        "--owner", help="Only change claims of this owner, with a final * of those that begin so. Repeatable."
    ),
]
TokenRole = Annotated[Role, typer.Option("--role", help="Each role includes the roles before it.")]


def create(
    name: TokenName,
    role: TokenRole,
    duration: options.TokenDuration = None,
    owner: TokenOwners = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Create a token. It is printed to stdout, only once; its id, role and end to stderr."""
    now = now_ms()
    end = PERMANENT if duration is None or duration == PERMANENT else now + duration
    with connect() as client:
        print_context(client)
        created = client.create_token(name, role, end=end, owners=owner)
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_lines(format_json(_json(created), indent=2 if output is OutputFormat.JSON else None))
        return
    token = created.token
    print_stderr(
        f"Token {token.id} of {token.name}, {token.role}, valid {format_end(token.end, now)}. It is shown only once:"
    )
    print_lines(created.text)


def list_(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show all tokens, without their secrets."""
    with connect() as client:
        print_items(columns.TOKENS, client.tokens(), OutputOptions(output, not no_headers))


def revoke(token: TokenId) -> None:
    """Revoke a token, with immediate effect."""
    with connect() as client:
        print_context(client)
        client.revoke_token(token)
    print_message(f"{token} revoked")


def _json(created: NewToken) -> dict[str, object]:
    from blocklist.wire.tokens import new_token_body  # noqa: PLC0415 - not for --version and --help

    return new_token_body(created)
