"""Quantities as a person writes them, for the sentences of a diagnosis. Pure."""

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def size(count: float) -> str:
    """Bytes in decimal units: 180 MB, 4.1 kB."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{number(count / unit)} {name}"
    return f"{count:.0f} B"


def rate(bytes_per_second: float) -> str:
    return f"{size(bytes_per_second)}/s"


def number(value: float) -> str:
    """A number with two digits, or all of the whole part: 4.1, 18, 1,900."""
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def duration(ms: float) -> str:
    """A time in its one or two largest units: 48 ms, 12 s, 5 h 20 min."""
    if ms < 1_000:
        return f"{number(ms)} ms"
    seconds = round(ms / 1_000)
    if seconds < _MINUTE:
        return f"{number(ms / 1_000)} s"
    if seconds < _HOUR:
        return _two(seconds, _MINUTE, "min", 1, "s")
    if seconds < _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "min")
    return _two(seconds, _DAY, "d", _HOUR, "h")


def _two(seconds: int, unit: int, name: str, smaller: int, smaller_name: str) -> str:
    whole, rest = divmod(seconds, unit)
    left = rest // smaller
    return f"{whole} {name} {left} {smaller_name}" if left else f"{whole} {name}"
