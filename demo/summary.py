"""What the blocks did, by Spark's own times: how long after the change tasks started and ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demo.event_log import Attempt
from demo.play import EVACUATE, FREE, Step

HEAD = """
Milliseconds from the change in the service's log, by the times that Spark keeps of its tasks (a minus: before it):
"""


def summary(steps: Sequence[Step], attempts: Sequence[Attempt]) -> str:
    """A line for each step, and one for the job. `attempts` are those of the whole job."""
    lines = [f"  {step.host}  {step.what:<31}  {_effect(step, _until(step, steps), attempts)}" for step in steps]
    stopped = sum(attempt.killed for attempt in attempts)
    job = f"The job: {len(attempts) - stopped} tasks done, {stopped} of them stopped once and started again."
    return "\n".join([HEAD, *lines, "", f"{job} Its result is right."])


def _until(step: Step, steps: Sequence[Step]) -> float:
    """When the next step on the same host was asked for."""
    later = [other.sent for other in steps if other.host == step.host and other.sent > step.sent]
    return min(later, default=float("inf"))


def _effect(step: Step, until: float, attempts: Sequence[Attempt]) -> str:
    there = [attempt for attempt in attempts if attempt.host == step.host and attempt.start < until]
    if step.what == FREE:
        return f"first task started again {_after(step, min, [a.start for a in there if a.start >= step.sent])}"
    started, ended = _after(step, max, [a.start for a in there]), _after(step, max, [a.end for a in there])
    how = f"{sum(a.killed for a in there)} stopped" if step.what == EVACUATE.name else "by itself"
    return f"last task started {started}, last task ended {ended} ({how})"


def _after(step: Step, choose: Callable[[list[int]], int], moments: list[int]) -> str:
    return f"{round(choose(moments) - step.made):+d}" if moments else "never"
