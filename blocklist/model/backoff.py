"""Retry delays. Pure; the caller provides the random number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds: from `floor` to min(cap, initial * 2^(failures - 1))."""

    initial: float = 0.2
    cap: float = 10.0
    floor: float = 0.05

    def delay(self, failures: int, jitter: float, retry_after: float | None = None) -> float:
        """Seconds to wait after `failures` consecutive failures (at least 1).

        `jitter` is a random number in [0, 1). `retry_after` is the minimum that the server requested (Retry-After, or
        `retry:` of an event stream), limited to the cap.
        """
        if failures < 1:
            raise ValueError("failures must be at least 1")
        ceiling = min(self.cap, self.initial * 2.0 ** min(failures - 1, 32))
        wait = self.floor + jitter * max(0.0, ceiling - self.floor)
        return max(wait, min(retry_after, self.cap)) if retry_after else wait
