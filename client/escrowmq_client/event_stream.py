"""Messages of a group as server-sent events. Pure: lines in, messages out.

Source of the form: the HTML standard, section Server-sent events.
"""

from collections import OrderedDict

import msgspec

from escrowmq_client.call import UNREADABLE
from escrowmq_client.errors import EscrowMQError, InvalidAnswer, Unreachable, error_of
from escrowmq_client.models.consume import ReceivedMessage
from escrowmq_client.models.problem import Problem

_MOST_KEPT = 2_000  # handles; a stream has at most 1,000 unacknowledged messages

_message = msgspec.json.Decoder(ReceivedMessage)
_problem = msgspec.json.Decoder(Problem)


class EventStream:
    """One stream, over all its connections."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._given: OrderedDict[str, None] = OrderedDict()  # handles, the newest at the end
        self._closing: Problem | None = None

    def connect(self) -> None:
        """A new connection begins."""
        self._fields, self._closing = {}, None

    def add(self, line: str) -> ReceivedMessage | None:
        """Take a line, without its end; return the message that it completes, unless it was given
        before over a connection that was lost.

        Raises InvalidAnswer.
        """
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        kind, data = fields.get("event"), fields.get("data", "")
        try:
            if kind == "closing":
                self._closing = _problem.decode(data)
            return self._new(_message.decode(data)) if kind == "message" else None
        except UNREADABLE as error:
            raise InvalidAnswer(f"an event {kind}, but {error}") from error

    def end(self) -> EscrowMQError:
        """Return why the connection has ended, by what the service has said."""
        if self._closing is not None:
            return error_of(self._closing)
        return Unreachable("the stream ended without a reason", outcome_unknown=False)

    def _new(self, message: ReceivedMessage) -> ReceivedMessage | None:
        if message.receipt_handle in self._given:
            return None
        self._given[message.receipt_handle] = None
        if len(self._given) > _MOST_KEPT:
            self._given.popitem(last=False)
        return message
