"""Replies that were just stored, for the clients that wait for them."""

from collections import OrderedDict

from storage.message import Message

_MOST = 256  # replies; each is returned within a few turns of the loop, unless its client has left
_MOST_BYTES = 16 << 10  # of a body; properties have at most 32 KiB


class RecentReplies:
    """Replies by their request, each to be read once. Event loop only."""

    def __init__(self) -> None:
        self._replies: OrderedDict[str, Message] = OrderedDict()

    def keep(self, request_id: str, reply: Message) -> None:
        """Keep a reply that is stored, unless it is large. The oldest one makes room."""
        if len(reply.body) <= _MOST_BYTES:
            self._replies[request_id] = reply
            if len(self._replies) > _MOST:
                self._replies.popitem(last=False)

    def take(self, request_id: str) -> Message | None:
        """The reply, which is not kept any longer."""
        return self._replies.pop(request_id, None)
