"""The process that Spark's Python workers are forked from, with all that a read of a log needs
imported once.

Spark asks a new worker to plan each read. One that imports numpy, Arrow and the decoder costs half
a second each time.
"""

from pyspark.daemon import manager

import audit.files.parquet_folder  # to be there in the forks
import audit.spark.commit_log_source
import audit.spark.consume_queue_source  # noqa: F401 - likewise

if __name__ == "__main__":
    manager()
