"""The agent that keeps the tasks of a running Spark application off blocked hosts. Needs PySpark 3.5 or later."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklist.spark.agent import AgentStatus, BlocklistAgent

__all__ = ["AgentStatus", "BlocklistAgent"]


def __getattr__(name: str) -> object:
    # The agent imports PySpark, which `python -m blocklist.spark conf` and the managers do not need.
    if name in __all__:
        from blocklist.spark import agent  # noqa: PLC0415

        return getattr(agent, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
