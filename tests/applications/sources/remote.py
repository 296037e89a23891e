"""remote.py URL COMMANDS RESULTS: a Spark Connect client; it runs each line of COMMANDS as a query."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
with Path(sys.argv[2]).open() as commands:
    for query in commands:
        row = spark.sql(query.strip().rstrip(";")).head()
        assert row is not None
        with Path(sys.argv[3]).open("a") as results:
            print(row[0], file=results)
spark.stop()
