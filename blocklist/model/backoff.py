"""The retry decision: whether to try again and after how long, as a value. Pure; the random number is handed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter: the n-th failure in a row waits `floor` to min(cap, first * 2^n)."""

    initial: float = 0.2
    cap: float = 10.0
    floor: float = 0.05

    def delay(self, failures: int, jitter: float, retry_after: float | None = None) -> float:
        """Seconds to wait after `failures` failures in a row (1 is the first).

        `jitter` is a random number in [0, 1). `retry_after` is what the other side asked for (Retry-After, an event
        stream's `retry:`): never less than that, up to the cap.
        """
        if failures < 1:
            raise ValueError("there was no failure")
        ceiling = min(self.cap, self.initial * 2.0 ** min(failures - 1, 32))
        wait = self.floor + jitter * max(0.0, ceiling - self.floor)
        return max(wait, min(retry_after, self.cap)) if retry_after else wait
