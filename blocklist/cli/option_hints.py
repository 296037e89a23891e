"""Commands whose error about a misspelt option also knows --context, which is an option of every command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

_EVERYWHERE: Final = "--context"
_SIMILARITY: Final = 0.8
"""An option at least this similar is the one that was meant: others, which share a few letters, are not named."""


class HintingTyper(typer.Typer):
    """Its commands, and it, have such hints."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=HintingGroup, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """As typer's."""
        return super().command(name, cls=HintingCommand, **settings)


class HintingCommand(TyperCommand):
    """A command with such hints."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's."""
        with _hints(self):
            return super().parse_args(ctx, args)


class HintingGroup(TyperGroup):
    """A group with such hints."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's."""
        with _hints(self):
            return super().parse_args(ctx, args)


@contextmanager
def _hints(command: TyperCommand | TyperGroup) -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        # Only the error about an unknown option has these, and typer has no public name for it.
        if (name := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
            error.possibilities = _similar(name, command)
        raise


def _similar(name: str, command: TyperCommand | TyperGroup) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    options = {_EVERYWHERE, *(option for each in command.params for option in each.opts if option.startswith("--"))}
    return get_close_matches(name, options, n=1, cutoff=_SIMILARITY) or get_close_matches(name, options)
