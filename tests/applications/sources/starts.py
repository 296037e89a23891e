"""starts.py COMMANDS RESULTS: starts and stops the agent in Python; it may run by configuration meanwhile.

For each line, a number N: N threads start the agent, ask for its status and stop it, at the same time. The result is
the maximum number of agents that were seen, by the threads that each has one of; 0 if a start got none that runs.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

sys.path.insert(0, str(Path(__file__).parents[3]))

from pyspark.sql import SparkSession

from blocklist.spark import BlocklistAgent

spark = SparkSession.builder.appName("starts").getOrCreate()
url = spark.conf.get("spark.blocklist.url")


def agents() -> int:
    """The number of agents in the driver."""
    jvm = spark._jvm
    assert jvm is not None
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    return [str(thread.getName()) for thread in threads].count("blocklist-check")


def start_and_stop(together: Barrier) -> int:
    together.wait()
    with BlocklistAgent.start(spark, url=url) as agent:
        return agents() if agent.status().running else 0


with Path(sys.argv[1]).open() as commands:
    for line in commands:
        count = int(line or 0)
        together = Barrier(count)
        with ThreadPoolExecutor(count) as threads:
            seen = list(threads.map(start_and_stop, [together] * count))
        with Path(sys.argv[2]).open("a") as results:
            print("ROUND", 0 if 0 in seen else max(*seen, agents()), file=results)
spark.stop()
