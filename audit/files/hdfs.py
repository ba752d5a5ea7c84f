"""HDFS: by the package hdfs-native, which needs no Java, or as pyarrow does it, by libhdfs, which
comes with a Hadoop.
"""

import importlib
from urllib.parse import urlsplit

from pyarrow import fs

_NEEDED = (
    "HDFS is reached by the package hdfs-native (the extra `hdfs` of escrowmq), or by libhdfs of "
    "an installed Hadoop "
    "(JAVA_HOME, HADOOP_HOME or ARROW_LIBHDFS_DIR, and CLASSPATH as `hadoop classpath --glob` "
    "prints it); there is neither"
)


class NoHdfs(OSError):
    """No library for HDFS is installed."""


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a `hdfs:` URI, and the path in it. Raises NoHdfs, OSError."""
    try:
        native = importlib.import_module("hdfs_native.fsspec")
    except ImportError:
        return _by_libhdfs(uri)
    where = urlsplit(uri)
    # What fsspec keeps is dropped in each child of a fork. Java is one, and a client without its
    # threads waits there for ever.
    client = native.HdfsFileSystem(where.hostname, where.port, skip_instance_cache=True)
    return fs.PyFileSystem(fs.FSSpecHandler(client)), where.path


def _by_libhdfs(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        found, path = fs.FileSystem.from_uri(uri)
    except OSError as error:
        if "to load lib" in str(error).partition("\n")[0]:  # of libjvm or libhdfs
            raise NoHdfs(_NEEDED) from None
        raise
    return found, path
