"""token create, token list and token revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.output import Form, Look, dumped, note, say, sentence, show
from blocklist.cli.service import connect
from blocklist.cli.times import now, until
from blocklist.model.node import PERMANENT
from blocklist.model.roles import Access

if TYPE_CHECKING:
    from blocklist.model.roles import NewToken

Name = Annotated[str, typer.Argument(metavar="NAME", help="The author of the changes that are made with it.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")]
Role = Annotated[Access, typer.Option("--role", help="Each may do what those before it may.")]


def create(name: Name, role: Role, duration: options.TokenLength = None, output: options.Output = Form.TABLE) -> None:
    """Make a token. It is written to stdout, this once; what there is to say of it to stderr."""
    at = now()
    end = PERMANENT if duration is None or duration == PERMANENT else at + duration
    with connect() as client:
        made = client.create_token(name, role, end=end)
    if output in (Form.JSON, Form.JSONL):
        say(dumped(_json(made), indent=2 if output is Form.JSON else None))
        return
    token = made.token
    note(f"Token {token.id} of {token.name}, {token.access}, valid {until(token.end, at)}. It is shown this once:")
    say(made.text)


def list_(output: options.Output = Form.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show all tokens, never what they open with."""
    with connect() as client:
        show(columns.TOKENS, client.tokens(), Look(output, not no_headers))


def revoke(token: Id) -> None:
    """Make a token invalid, now."""
    with connect() as client:
        client.revoke_token(token)
    sentence(f"{token} revoked")


def _json(made: NewToken) -> dict[str, object]:
    from blocklist.wire.tokens import new_token_body  # noqa: PLC0415 - not for --version and --help

    return new_token_body(made)
