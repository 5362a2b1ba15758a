"""Spark job: reads the log of a stopped or running server, and sums the quantities of each symbol.

    python examples/spark_job.py JOURNAL_DIRECTORY

Needs `pip install "$(ls dist/quire_mq-*.whl)[spark]"` and Java 17.
"""

from __future__ import annotations

import sys

import quire.spark
from pyspark.sql import functions as f


def main(directory: str) -> None:
    spark = quire.spark.session(quiet=True)
    orders = (
        spark.read.format("quire")
        .option("path", directory)
        .option("topics", "orders")
        .schema("symbol string, quantity bigint")
        .load()
    )
    orders.groupBy("symbol").agg(f.sum("quantity").alias("quantity")).orderBy("symbol").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
