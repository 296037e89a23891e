"""token create, token list and token revoke."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from blocklist.cli import columns, options
from blocklist.cli.environment import connect, print_context, service_now, service_now_for_change
from blocklist.cli.messages import format_end, outcome_unknown
from blocklist.cli.output import (
    OutputFormat,
    OutputOptions,
    format_json,
    print_items,
    print_lines,
    print_message,
    print_stderr,
)
from blocklist.model.errors import NotFoundError, UnavailableError
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
TokenRole = Annotated[Role, options.choice_option(Role, "--role", help_text="Each role includes the roles before it.")]


def create(
    name: TokenName,
    role: TokenRole,
    duration: options.TokenDuration = None,
    owner: TokenOwners = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Create a token. It is printed to stdout, only once; its id, role and end to stderr."""
    with connect() as client:
        print_context(client)
        end = PERMANENT
        if duration is not None and duration != PERMANENT:
            end = service_now_for_change(client) + duration
        with _report_unknown_token(name):
            created = client.create_token(name, role, end=end, owners=owner)
        now = service_now(client)
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_lines(format_json(_json(created), indent=2 if output is OutputFormat.JSON else None))
        return
    token = created.token
    print_stderr(
        f"Token {token.id} of {token.name}, {token.role}, valid {format_end(token.end, now)}. It is shown only once:"
    )
    print_lines(created.text)


@contextmanager
def _report_unknown_token(name: str) -> Iterator[None]:
    """Say that a token may exist, if the command ends without its text; the error is raised again."""
    try:
        yield
    except (KeyboardInterrupt, UnavailableError) as error:
        if outcome_unknown(error):
            print_stderr(
                f"A token of {name} may have been created, and nobody has its text: see `blocklist token list`, and"
                " revoke it."
            )
        raise


def list_(output: options.Output = OutputFormat.TABLE, no_headers: options.NoHeaders = False) -> None:
    """Show all tokens, without their secrets."""
    with connect() as client:
        print_items(columns.TOKENS, client.tokens(), OutputOptions(output, not no_headers))


def revoke(token: TokenId) -> None:
    """Revoke a token, with immediate effect."""
    with connect() as client:
        print_context(client)
        try:
            client.revoke_token(token)
        except NotFoundError:
            for known in client.tokens():
                if known.name == token:
                    print_stderr(f"{token} is the name of the token {known.id}: give that id.")
            raise
    print_message(f"{token} revoked")


def _json(created: NewToken) -> dict[str, object]:
    from blocklist.wire.tokens import new_token_body  # noqa: PLC0415 - not for --version and --help

    return new_token_body(created)
