"""The effect of the blocks by Spark's own times: from the change until tasks started and ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demo.event_log import TaskAttempt
from demo.scenario import EVACUATE, FREE, Step

HEAD = """
Milliseconds after the service committed the change, by Spark's own task times (negative: before it):
"""


def summary(steps: Sequence[Step], attempts: Sequence[TaskAttempt]) -> str:
    """Return a line per step and one for the job. `attempts` are those of the whole job."""
    lines = [
        f"  {step.host}  {step.change:<31}  {_describe(step, _next_step_at(step, steps), attempts)}" for step in steps
    ]
    stopped = sum(attempt.killed for attempt in attempts)
    job = f"The job: {len(attempts) - stopped} tasks done, {stopped} of them stopped once and restarted."
    return "\n".join([HEAD, *lines, "", f"{job} Its result is correct."])


def _next_step_at(step: Step, steps: Sequence[Step]) -> float:
    """When the next step on the same host was sent."""
    later = [other.sent_at for other in steps if other.host == step.host and other.sent_at > step.sent_at]
    return min(later, default=float("inf"))


def _describe(step: Step, until: float, attempts: Sequence[TaskAttempt]) -> str:
    on_host = [attempt for attempt in attempts if attempt.host == step.host and attempt.start < until]
    if step.change == FREE:
        return f"first task started {_delay(step, min, [a.start for a in on_host if a.start >= step.sent_at])}"
    started, ended = _delay(step, max, [a.start for a in on_host]), _delay(step, max, [a.end for a in on_host])
    stopped = f"{sum(a.killed for a in on_host)} stopped" if step.change == EVACUATE.name else "finished"
    return f"last task started {started}, last task ended {ended} ({stopped})"


def _delay(step: Step, choose: Callable[[list[int]], int], moments: list[int]) -> str:
    return f"{round(choose(moments) - step.committed_at):+d}" if moments else "never"
