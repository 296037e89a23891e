"""rounds.py COMMANDS RESULTS: a PySpark application that knows nothing of the blocklist; the same as Rounds.java."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

context = SparkSession.builder.appName("python").getOrCreate().sparkContext
with Path(sys.argv[1]).open() as commands:
    for line in commands:
        slow = line.strip()
        if slow.startswith("exit "):
            sys.exit(int(slow.removeprefix("exit ")))

        def work(_: int, slow: str = slow) -> str:
            host = os.environ["SPARK_LOCAL_IP"]
            time.sleep(600 if host == slow else 0.05)
            return host

        hosts = context.parallelize(range(24), 24).map(work).collect()
        with Path(sys.argv[2]).open("a") as results:
            print("ROUND", len(hosts), *sorted(set(hosts)), file=results)
context.stop()
