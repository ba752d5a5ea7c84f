"""Answers of a broker about itself: settings, how far its log is, files of its `config/`."""

import re
from typing import NamedTuple

import msgspec

from app.rocketmq.remoting import BadAnswer, Broker, Request
from storage.formats import consumer_offsets, delay_progress, group_configs, topic_configs

_CONFIG = {
    topic_configs.FILE: Request.TOPICS,
    group_configs.FILE: Request.GROUPS,
    consumer_offsets.FILE: Request.CONSUMER_OFFSETS,
    delay_progress.FILE: Request.DELAY_OFFSETS,
}
_SETTING = re.compile(r"^([A-Za-z0-9]+)=(.*)$", re.MULTILINE)


class OtherLog(Exception):
    """The broker has no log that can be followed; the reason, for a person."""


class BrokerSettings(NamedTuple):
    """Settings of a broker, by its own names."""

    cluster: str
    name: str
    segment_bytes: int
    ha_port: int


class LogBounds(NamedTuple):
    """Log offsets: the first byte that the broker has, and the end."""

    begin: int
    end: int


async def settings_of(broker: Broker) -> BrokerSettings:
    """Raises OtherLog, and as `Broker.ask`."""
    text = (await broker.ask(Request.SETTINGS)).body.decode(errors="replace")
    found = dict(_SETTING.findall(text))
    if found.get("enableDLegerCommitLog") == "true":
        raise OtherLog("its log is one of DLedger, whose records have another form")
    if found.get("enableControllerMode") == "true":
        raise OtherLog("it runs in controller mode, where slaves speak another protocol")
    try:
        settings = BrokerSettings(
            found["brokerClusterName"],
            found["brokerName"],
            int(found["mappedFileSizeCommitLog"]),
            int(found["haListenPort"]),
        )
    except (KeyError, ValueError) as error:
        raise BadAnswer(f"settings that cannot be read: {error}") from None
    if settings.segment_bytes < 1:
        raise BadAnswer(f"segments of {settings.segment_bytes} bytes")
    return settings


async def bounds_of(broker: Broker) -> LogBounds:
    """Raises as `Broker.ask`."""

    class State(msgspec.Struct):
        table: dict[str, str]

    body = (await broker.ask(Request.STATE)).body
    try:
        table = msgspec.json.decode(body, type=State).table
        # -1: it has no log yet
        return LogBounds(
            max(0, int(table["commitLogMinOffset"])), max(0, int(table["commitLogMaxOffset"]))
        )
    except (msgspec.DecodeError, KeyError, ValueError, RecursionError) as error:
        raise BadAnswer(f"a state that cannot be read: {error}") from None


async def config_of(broker: Broker) -> dict[str, bytes]:
    """File name -> content, as the broker itself would write it. Raises as `Broker.ask`."""
    return {name: (await broker.ask(request)).body for name, request in _CONFIG.items()}


async def record_at(broker: Broker, offset: int) -> bytes:
    """The bytes of the record at a log offset. Raises as `Broker.ask`."""
    return (await broker.ask(Request.RECORD, {"offset": str(offset)})).body
