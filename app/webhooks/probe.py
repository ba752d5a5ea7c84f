"""Does an endpoint keep the contract of checks? Five test questions, about transactions that do not
exist.

The first three are signed as every check is. An endpoint that answers commit to one of them would
publish what no database has; one that changes its mind cannot be asked twice. The last two carry no
valid signature: an endpoint that accepts them accepts a check from any sender.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from app.webhooks.answers import CheckQuestion, read_answer
from app.webhooks.service import Webhooks
from escrowmq_client.webhooks import new_secret
from storage.clock import Clock
from storage.errors import TooManyWaiting
from storage.identifiers import Identifiers
from txn.check_sender import CheckSender
from txn.producer import Answered, Failed
from txn.states import TxnEvent

PREFIX = "check-test"  # of the transaction ids, so that a producer knows what it may throw away
LIMIT_MS = 30_000  # for all cases together
MOST_AT_ONCE = 4

_YOUNG_MS = 10_000
_OLD_MS = 30 * 86_400_000
_HOUR_MS = 3_600_000
_OLD_ANSWER_NUMBER = 15


class Case(NamedTuple):
    """Result of one test question."""

    case: str
    expected: str
    got: str
    passed: bool
    latency_ms: int | None = None  # None where nothing was sent


class _Came(NamedTuple):
    """Input of a judge: the status, the decision, and the decision of the question before."""

    status: int | None
    decision: TxnEvent | None
    before: TxnEvent | None


class _Question(NamedTuple):
    case: str
    expected: str
    asked: CheckQuestion
    is_good: Callable[[_Came], bool]
    is_forged: bool = False
    signed_before_ms: int = 0


class CheckProbe:
    """Sends one test check; nothing is written, no transaction is touched. Event loop only."""

    def __init__(
        self, sender: CheckSender, webhooks: Webhooks, clock: Clock, identifiers: Identifiers
    ) -> None:
        self._sender = sender
        self._webhooks = webhooks
        self._clock = clock
        self._identifiers = identifiers
        self._running = 0

    async def run(self, group: str) -> list[Case]:
        """One case after another. Raises TooManyWaiting."""
        if self._running >= MOST_AT_ONCE:
            raise TooManyWaiting(
                f"{self._running} endpoints are being tested, the limit is {MOST_AT_ONCE}"
            )
        self._running += 1
        questions = _questions(self._identifiers)
        cases: list[Case] = []
        before: TxnEvent | None = None
        try:
            async with asyncio.timeout(LIMIT_MS / 1000):
                for question in questions:
                    case, before = await self._ask(group, question, before)
                    cases.append(case)
        except TimeoutError:
            late = f"nothing within the {LIMIT_MS} ms that the test may take"
            cases += [
                Case(question.case, question.expected, late, passed=False)
                for question in questions[len(cases) :]
            ]
        finally:
            self._running -= 1
        return cases

    async def _ask(
        self, group: str, question: _Question, before: TxnEvent | None
    ) -> tuple[Case, TxnEvent | None]:
        """Send a question: (result, decision in the answer)."""
        status: int | None = None
        latency_ms: int | None = None

        async def ask() -> Answered | Failed:
            nonlocal latency_ms, status
            began_ms = self._clock.monotonic_ms()
            secret = new_secret() if question.is_forged else None
            before_ms = question.signed_before_ms
            answer = await self._webhooks.send_test(
                group, question.asked, secret=secret, signed_before_ms=before_ms
            )
            latency_ms = self._clock.monotonic_ms() - began_ms
            if isinstance(answer, Failed):
                return answer
            status = answer.status
            return read_answer(answer, now_ms=self._clock.wall_ms())

        read = await self._sender.ask_beside(group, ask)
        decision = read.decision if isinstance(read, Answered) else None
        got = read.detail if isinstance(read, Failed) else read.decision.value
        passed = question.is_good(_Came(status, decision, before))
        return Case(question.case, question.expected, got, passed, latency_ms), decision


def _questions(identifiers: Identifiers) -> list[_Question]:
    young, old, forged, replayed = identifiers.many(PREFIX, 4)
    no_commit, refusal = "unknown or rollback", "a status from 400 to 499"
    return [
        _Question("never_seen", no_commit, _about(young), _is_no_commit),
        _Question(
            "asked_again", "the same answer, or rollback after unknown", _about(young), _is_kept
        ),
        _Question(
            "very_old",
            no_commit,
            _about(old, age_ms=_OLD_MS, answer_number=_OLD_ANSWER_NUMBER),
            _is_no_commit,
        ),
        _Question("wrong_signature", refusal, _about(forged), _is_refusal, is_forged=True),
        _Question(
            "old_timestamp", refusal, _about(replayed), _is_refusal, signed_before_ms=_HOUR_MS
        ),
    ]


def _is_no_commit(came: _Came) -> bool:
    return came.decision in (TxnEvent.UNKNOWN, TxnEvent.ROLLBACK)


def _is_kept(came: _Came) -> bool:
    # Meanwhile it may have made sure that the transaction can no longer commit.
    return _is_no_commit(came) and came.before in (TxnEvent.UNKNOWN, came.decision)


def _is_refusal(came: _Came) -> bool:
    return came.status is not None and 400 <= came.status < 500


def _about(
    transaction_id: str, *, age_ms: int = _YOUNG_MS, answer_number: int = 1
) -> CheckQuestion:
    """A question as a check would ask it."""
    return CheckQuestion(
        check_id=f"chk_{answer_number}_{transaction_id}",
        transaction_id=transaction_id,
        business_key=PREFIX,
        age_ms=age_ms,
        answer_number=answer_number,
    )
