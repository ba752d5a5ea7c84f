"""`escrowmq replica promote --url`: have a machine that runs take the place of the service."""

import sys
import time

import httpx
import msgspec
from msgspec import UNSET

from app.fencing.schemas import Promotion
from app.names.http_server import UNREADABLE, reason_of, reason_without_answer
from app.names.schemas import Node, NodeList
from cli.common import Exit, say

_ANSWER_S = 60.0  # the others are asked first, and a service that hands over stops in order
_READY_S, _PAUSE_S = 60.0, 0.1
_NOT_READY = 75  # EX_TEMPFAIL


def run(url: str, *, hand_over: bool, accept_loss: bool, yes: bool, api_key: str | None) -> int:
    """The exit status."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_ANSWER_S) as http:
            return _run(http, hand_over=hand_over, accept_loss=accept_loss, yes=yes)
    except httpx.HTTPError as error:
        say(f"{url}: {reason_without_answer(error)}")
    except (httpx.InvalidURL, _NotDone) as error:
        say(f"{url}: {error}")
    except UNREADABLE:
        say(f"{url}: what answers there is no machine of the service")
    return Exit.NOT_CARRIED_OUT


class _NotDone(Exception):
    """The machine has refused, or not understood."""


def _run(http: httpx.Client, *, hand_over: bool, accept_loss: bool, yes: bool) -> int:
    if not yes:
        _show_nodes(http)
        more = (" --hand-over" if hand_over else "") + (" --accept-loss" if accept_loss else "")
        say(
            "Nothing is changed. Do it with: "
            f"escrowmq replica promote --url {str(http.base_url).rstrip('/')}{more} --yes"
        )
        return 0
    begun_s = time.monotonic()
    asked = {"hand_over": hand_over, "accept_loss": accept_loss}
    answer = http.post("/v1/admin/promotion", json=asked)
    if not answer.is_success:
        raise _NotDone(reason_of(answer))
    done = msgspec.json.decode(answer.content, type=Promotion)
    say(f"{done.node} is the service, in epoch {done.epoch}; its log ends at {done.end_offset:,}.")
    return _wait_until_ready(http, begun_s)


def _wait_until_ready(http: httpx.Client, begun_s: float) -> int:
    last = ""
    while time.monotonic() < begun_s + _READY_S:
        reason = _why_not_ready(http)
        if not reason:
            say(f"It is ready, {time.monotonic() - begun_s:.1f} s after the command.")
            return 0
        if reason != last:
            last = reason
            say(f"Not ready: {reason}")
        time.sleep(_PAUSE_S)
    return _NOT_READY


def _why_not_ready(http: httpx.Client) -> str:
    """Empty: it is."""
    try:
        answer = http.get("/readyz", params={"role": "primary"})
    except httpx.TransportError as error:  # it is promoted all the same
        return reason_without_answer(error)
    return "" if answer.is_success else reason_of(answer)


def _show_nodes(http: httpx.Client) -> None:
    answer = http.get("/v1/names/nodes")
    if not answer.is_success:
        raise _NotDone(reason_of(answer))
    sys.stderr.writelines(
        f"{_line(node)}\n" for node in msgspec.json.decode(answer.content, type=NodeList).items
    )


def _line(node: Node) -> str:
    behind = "" if node.behind_bytes is UNSET else f", {node.behind_bytes:,} bytes behind"
    away = f", silent for {node.silent_ms / 1000:.0f} s" if node.away else ""
    return (
        f"{node.node}  {node.role}, log ends at {node.end_offset:,} in epoch {node.epoch}"
        f"{behind}{away}"
    )
