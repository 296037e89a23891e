"""How the progress of a drain is shown: plain lines in a pipe; on a terminal also a bar below them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blocklist.cli.output import print_message, print_stderr, use_colour
from blocklist.cli.table import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress

    from blocklist.cli.occupancy import Holder


class DrainDisplay:
    """Plain lines: `r12n03  app-42  3 tasks running`."""

    def __init__(self) -> None:
        self._available = True

    def print(self, text: str) -> None:
        print_message(text)

    def holder(self, node_id: str, listener: str, holder: Holder) -> None:
        """What one listener reports about one node; without a name, what nobody reports."""
        self.print("  ".join(filter(None, [node_id, listener, holder.text])))

    def drained(self, node_id: str) -> None:
        self.print(f"{node_id}  drained")

    def progress(self, drained: int, total: int) -> None:
        """Show how many nodes are drained."""

    def service_unavailable(self, error: str) -> None:
        """Say so once: the drain goes on, but what runs is unknown meanwhile."""
        if self._available:
            self._available = False
            print_stderr(f"{error} What runs is unknown; trying again.")

    def service_available(self) -> None:
        if not self._available:
            self._available = True
            print_stderr("The service answers again.")


class TerminalDisplay(DrainDisplay):
    """The lines scroll above a bar with the number of drained nodes and the time."""

    def __init__(self, bar: Progress, total: int) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("drained", total=total)

    def print(self, text: str) -> None:
        self._bar.console.print(escape_unprintable(text), markup=False, highlight=False, soft_wrap=True)

    def progress(self, drained: int, total: int) -> None:
        self._bar.update(self._task, completed=drained, total=total)


@contextmanager
def drain_display(total: int) -> Iterator[DrainDisplay]:
    """The display that suits stdout, for this number of nodes."""
    if not sys.stdout.isatty():
        yield DrainDisplay()
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("drained"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(no_color=not use_colour(), highlight=False)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        yield TerminalDisplay(bar, total)
