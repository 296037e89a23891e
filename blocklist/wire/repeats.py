"""The body of a repeat: why an automatic claim lasts longer than usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from blocklist.model.claims import Repeat
from blocklist.wire.body import Body, Doc
from blocklist.wire.json import Json


@dataclass(kw_only=True)
class RepeatBody(Body):
    """That an automatic claim lasts longer because its node was blocked before. Durations are in milliseconds."""

    number: Annotated[int, Doc("It is the automatic block of the node with this number in the window.")]
    window_ms: int
    usual_ms: Annotated[int, Doc("Duration of a first block.")]
    duration_ms: Annotated[int, Doc("Duration of this one, from its last renewal.")]

    def value(self) -> Repeat:
        return Repeat(number=self.number, window=self.window_ms, usual=self.usual_ms, duration=self.duration_ms)


def repeat_body(repeat: Repeat) -> Json:
    """Why an automatic claim lasts longer than usual."""
    return {
        "number": repeat.number,
        "windowMs": repeat.window,
        "usualMs": repeat.usual,
        "durationMs": repeat.duration,
    }
