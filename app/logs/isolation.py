"""isolated: a callback that raises must not stop the loop that calls it."""

from __future__ import annotations

from types import TracebackType
from typing import Final

import structlog

log: Final = structlog.get_logger(__name__)


class isolated:  # noqa: N801 - it is used like contextlib.suppress
    """A context that logs an exception of its body and continues behind it; `part` names the body in the log.

    May be entered again and again. A class, because loops over thousands of callbacks use it. A cancellation and the
    end of the process are not exceptions of the body: they pass.
    """

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("a callback failed; its caller continues", part=self._part, exc_info=error)
        return True
