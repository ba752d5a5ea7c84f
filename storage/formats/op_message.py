"""The tag and the body of an op message: the half messages that it decides.

Source: RocketMQ TransactionalMessageServiceImpl#fillOpRemoveMap.
"""

from collections.abc import Iterable

OP_TAG = "d"  # a message of the op topic without it decides nothing


def op_body(offsets: Iterable[int]) -> bytes:
    """The body that names these halves, as RocketMQ writes it."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def half_offsets(body: bytes) -> tuple[int, ...]:
    """The queue offsets of the halves that an op's body names: one number, or several with commas
    between or behind.
    """
    return tuple(
        int(number)
        for number in body.decode("ascii", "replace").split(",")
        if number.isascii() and number.isdigit()
    )
