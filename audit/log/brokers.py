"""Records of a log that a broker wrote. Without Arrow, unless segments are rows."""

from audit.log.log_files import LogReader
from audit.log.log_range import Log
from storage.formats import record as records

_SYS_FLAG = slice(36, 40)  # bytes of a record
_STORE_HOST_AT = 64  # behind an IPv4 born host


def is_ours(raw: bytes) -> bool:
    """Whether EscrowMQ wrote the record that begins here, by its store host."""
    sys_flag = int.from_bytes(raw[_SYS_FLAG], "big")
    more_bytes = records.IPV6_MORE_BYTES if sys_flag & records.BORN_HOST_IPV6 else 0
    return raw.startswith(records.HOST, _STORE_HOST_AT + more_bytes)


def has_brokers_records(log: Log) -> bool:
    """Whether any segment begins with a record of a broker. A segment that a broker continued is
    recognised later, by its ops.
    """
    reader = LogReader()
    try:
        for segment in log.folder.segments:
            if segment.is_compacted:
                from audit.log import compacted

                if segment.base_offset < log.end and compacted.manifest_of(segment)["is_brokers"]:
                    return True
                continue
            raw = reader.read(segment, segment.base_offset, records.FIXED_BYTES)
            if segment.base_offset < log.end and any(raw) and not is_ours(raw):
                return True
        return False
    finally:
        reader.close()
