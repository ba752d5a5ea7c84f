"""A cron expression in a time zone, and the times at which it fires.

Pure; it fires as Debian's cron does (docs/delays.md).

Five fields, or six with the seconds first, or one of the names below. Times are wall milliseconds,
in whole seconds, and arguments: no clock is read.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from storage.errors import InvalidRequest

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Where clocks are turned, a search backwards begins so much behind its end: begun in an hour that
# comes twice, it would miss what is in the first one. Elsewhere it need not: a line that fires
# every second has thousands of moments in there.
_MARGIN_MS = 3 * 3_600_000


class CronLine:
    def __init__(self, expression: str, time_zone: str) -> None:
        """Parse the expression. Raises InvalidRequest with the pointer `/cron` or `/time_zone`."""
        self._fields = _NAMED.get(expression.lower(), expression)
        self._zone = _zone(time_zone)
        try:
            self.in_words = CronSim(self._fields, datetime.fromtimestamp(0, self._zone)).explain()
        except CronSimError as error:
            detail = (
                f"not a cron line: {str(error).lower()}; it has minute, hour, day of month, "
                "month, day of week"
            )
            raise InvalidRequest(detail, pointer="/cron") from None

    def after(self, moment_ms: int) -> int | None:
        """The first time after this one; None if there is none within fifty years."""
        return next(self._moments(moment_ms), None)

    def upcoming(self, after_ms: int, count: int) -> list[int]:
        """Up to so many times, earliest first."""
        return list(islice(self._moments(after_ms), count))

    def latest(self, *, after_ms: int, until_ms: int, count: int) -> list[int]:
        """The last so many times in (after_ms, until_ms], earliest first."""
        found: list[int] = []
        margin_ms = _MARGIN_MS if self._is_clock_turned_around(until_ms) else 1_000
        backwards = CronSim(self._fields, self._local(until_ms + margin_ms), reverse=True)
        for moment_ms in map(_as_ms, backwards):
            if moment_ms <= after_ms or len(found) == count:
                break
            if moment_ms <= until_ms and (not found or moment_ms < found[-1]):
                found.append(moment_ms)
        return found[::-1]

    def as_local(self, moment_ms: int) -> str:
        """The local time in the zone, with its offset from UTC."""
        return self._local(moment_ms).isoformat()

    def _moments(self, after_ms: int) -> Iterator[int]:
        last_ms = after_ms
        try:
            for moment_ms in map(_as_ms, CronSim(self._fields, self._local(after_ms))):
                # One that is asked for in an hour that comes twice would also be found in the first
                # one, which is past.
                if moment_ms > last_ms:
                    yield moment_ms
                    last_ms = moment_ms
        except OverflowError:
            return  # the end of the calendar

    def _is_clock_turned_around(self, moment_ms: int) -> bool:
        around = (moment_ms - _MARGIN_MS, moment_ms, moment_ms + _MARGIN_MS)
        return len({self._local(one_ms).utcoffset() for one_ms in around}) > 1

    def _local(self, moment_ms: int) -> datetime:
        return datetime.fromtimestamp(moment_ms // 1_000, self._zone)


def _as_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    # a folder of the database is an OSError, a file that is none a ValueError
    except (KeyError, ValueError, OSError):
        detail = f"there is no time zone {name[:100]!r}; it is named as Europe/Berlin or UTC"
        raise InvalidRequest(detail, pointer="/time_zone") from None
