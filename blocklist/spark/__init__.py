"""The agent that makes a running Spark application keep off the blocked hosts. Wants PySpark 3.5 or later."""

from blocklist.spark.agent import AgentStatus, BlocklistAgent

__all__ = ["AgentStatus", "BlocklistAgent"]
