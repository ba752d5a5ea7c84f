"""Did calls that ran beside each other answer as if each had happened at one moment between its
begin and its end?

The search of Wing and Gong, with a memory of what was tried: an order of the calls is looked for in
which a plain sequential description gives every answer that was given. A call without an answer may
have happened, until its end, or not at all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

S = TypeVar("S")
FOR_EVER = 1 << 62


@dataclass(eq=False)
class Call:
    """`begun` and `ended`: numbers of one counter that goes up with every begin and every end."""

    what: Any
    begun: int
    ended: int = FOR_EVER
    answer: Any = None  # None: there was none


def states_after(
    calls: Sequence[Call], before: Iterable[S], answers: Callable[[S, Any], Iterable[tuple[S, Any]]]
) -> set[S]:
    """The states that all this may have led to; none where no order explains the answers.

    `answers(state, what)`: each (new state, answer) that the described thing may come to when asked
    so in this state.
    """
    must = sum(1 << number for number, call in enumerate(calls) if call.answer is not None)
    tried: set[tuple[int, S]] = set()
    waiting: list[tuple[int, S]] = [(0, state) for state in before]
    found: set[S] = set()
    while waiting:
        done, state = step = waiting.pop()
        if step in tried:
            continue
        tried.add(step)
        if done & must == must:
            found.add(state)
        for number, call in enumerate(calls):
            if not done >> number & 1 and _may_be_next(calls, done, call):
                for new_state, answer in answers(state, call.what):
                    if call.answer is None or answer == call.answer:
                        waiting.append((done | 1 << number, new_state))
    return found


def _may_be_next(calls: Sequence[Call], done: int, call: Call) -> bool:
    for number, other in enumerate(calls):
        if done >> number & 1:
            if call.ended < other.begun:
                return False  # this one ended before one that has happened already was begun
        elif other.answer is not None and other.ended < call.begun:
            return False  # that one has to happen first
    return True
