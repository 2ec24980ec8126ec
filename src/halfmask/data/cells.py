"""How one cell reads: a function of that cell's value alone, never of the rows beside it.

Every value has one text (`cell_text`), and levels, numbers, dates and truth values are read from
that text. Frames choose one type per column by all of its cells, so the text must not follow that
type: 1, 1.0, Decimal("1.00") and the integer 1 of a column of decimals are all "1".
Guarantee: docs/proofs/encoding.md.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

BINARY = "\0binary data"
NESTED = "\0a list"
UNREADABLE = "\0an object"
"""Texts of values that have none; no file holds them and no level can be written like them."""

TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

_SECOND = 10**9
_DAY = 86_400 * _SECOND
_NANOSECONDS = {"W": 7 * _DAY, "D": _DAY, "h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND}
_NANOSECONDS |= {"ms": 10**6, "us": 1000, "ns": 1}
# The days of 400 years, after which the calendar repeats: datetime64 leaves the years of dt.date.
_CYCLE, _EPOCH = 146_097, dt.date(1970, 1, 1).toordinal()
# Beyond any float64: such a number is infinite for every use we have.
_MOST_BITS = 1024
_MOST_DIGITS = 400

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?P<exponent>[eE][+-]?\d+)?", re.ASCII)
_MOMENT = re.compile(
    r"(-?\d{4,9})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(Z| ?UTC|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?",
    re.ASCII,
)

Sameness = tuple[str, int | float]
"""What makes two texts the same level: ("number", 1), ("date", nanoseconds), ("truth", 1)."""


def cell_text(value: Any) -> str | None:
    """The text of one value, not yet trimmed; None where it is missing."""
    try:
        return _text(value)
    except Exception:
        # A value of a foreign class that cannot even be printed.
        return UNREADABLE


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bool, np.bool_)):
        return "True" if value else "False"
    if isinstance(value, (int, np.integer)):
        return _whole_text(int(value))
    if isinstance(value, (float, np.floating)):
        return _float_text(float(value))
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, (complex, np.complexfloating)) and not value.imag:
        # One complex number makes all numbers of a pandas column complex.
        return _float_text(float(value.real))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes_text(bytes(value))
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _numpy_time_text(value)
    if isinstance(value, dt.date):  # a datetime too, and with it a pandas Timestamp
        found = moment(value.isoformat())
        return str(value) if found is None else moment_text(found)
    if isinstance(value, dt.time) and value.tzinfo is None:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return clock_text(seconds * _SECOND + value.microsecond * 1000)
    if isinstance(value, dt.timedelta):
        whole = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
        return duration_text(whole * 1000 + getattr(value, "nanoseconds", 0))
    if isinstance(value, (list, tuple, set, frozenset, Mapping, np.ndarray)):
        return NESTED
    return str(value)


def _whole_text(value: int) -> str:
    if value.bit_length() > _MOST_BITS:
        return "inf" if value > 0 else "-inf"
    return str(value)


def _float_text(value: float) -> str | None:
    if value != value:
        return None
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    return _decimal_text(Decimal(text)) if "e" in text else text


def _decimal_text(value: Decimal) -> str | None:
    """All digits, no zeros at the end: the scale of a column of decimals is that of all rows."""
    if value.is_nan():
        return None
    if value.is_infinite() or (value and value.adjusted() > _MOST_DIGITS):
        return "-inf" if value.is_signed() else "inf"
    if not value or value.adjusted() < -_MOST_DIGITS:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return BINARY


def _numpy_time_text(value: np.datetime64 | np.timedelta64) -> str | None:
    if np.isnat(value):
        return None
    if isinstance(value, np.timedelta64):
        unit, step = np.datetime_data(value.dtype)
        if unit not in _NANOSECONDS:
            return str(value)
        return duration_text(int(value.astype(np.int64)) * step * _NANOSECONDS[unit])
    text = str(value.astype("datetime64[D]") if value.dtype.str[4:-1] in ("Y", "M", "W") else value)
    found = moment(text if "T" not in text or ":" in text else f"{text}:00")
    return text if found is None else moment_text(found)


def moment(text: str) -> int | None:
    """Nanoseconds since 1970 of an ISO date or time; None where the text is neither.

    A time with a zone is moved to UTC; one without is taken as it is.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    hour, minute, second = int(found[4] or 0), int(found[5] or 0), int(found[6] or 0)
    days = _days(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    seconds -= _zone_seconds(found[8] or "Z")
    return seconds * _SECOND + int((found[7] or "0").ljust(9, "0"))


def moment_text(moment: int) -> str:
    """The ISO text of nanoseconds since 1970: the date alone at midnight."""
    days, rest = divmod(moment, _DAY)
    return _day_text(days) + (f"T{clock_text(rest)}" if rest else "")


def clock_text(nanoseconds: int) -> str:
    """The time of day, with as many digits as it needs."""
    seconds, fraction = divmod(nanoseconds, _SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return clock + (f".{fraction:09}".rstrip("0") if fraction else "")


def moment_seconds(moment: int) -> float:
    """Seconds since 1970, by the arithmetic that columns of timestamps go through too."""
    seconds, fraction = divmod(moment, _SECOND)
    return float(seconds) + fraction / _SECOND


def duration_text(nanoseconds: int) -> str:
    """A span of time, whatever unit its column counts in."""
    return f"PT{_decimal_text(Decimal(nanoseconds).scaleb(-9))}S"


def _zone_seconds(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    size = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -size if zone[0] == "-" else size


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970 in the calendar of any year; None where there is no such day."""
    cycles, of_cycle = divmod(year - 1970, 400)
    try:
        known = dt.date(1970 + of_cycle, month, day)
    except ValueError:
        return None
    return cycles * _CYCLE + known.toordinal() - _EPOCH


def _day_text(days: int) -> str:
    cycles, of_cycle = divmod(days, _CYCLE)
    known = dt.date.fromordinal(_EPOCH + of_cycle)
    year = known.year + 400 * cycles
    # Four digits besides the sign of a year before 0.
    return f"{year:0{4 + (year < 0)}}-{known.month:02}-{known.day:02}"


def sameness(text: str) -> Sameness | None:
    """By what a trimmed text equals others: as a number, a date or a truth value; or nothing."""
    if text in TRUTHS:
        return "truth", int(TRUTHS[text])
    if not text or text[0] not in "0123456789+-.":
        return None
    number = _NUMBER.fullmatch(text)
    if number is not None:
        return "number", _number(text, exponent=number["exponent"] is not None)
    found = moment(text)
    return None if found is None else ("date", found)


def _number(text: str, *, exponent: bool) -> int | float:
    """Whole numbers keep all digits; any other is its nearest float64, as is 1e+18."""
    if exponent or len(text) > _MOST_DIGITS:
        value = float(text)
        return int(value) if value.is_integer() else value
    exact = Decimal(text)
    whole = int(exact)
    return whole if whole == exact else float(text)


MISSING_WORDS = ("", "NA", "NaN", "nan")
"""How a missing value is written, besides a null of the frame."""


def level_text(value: object) -> str:
    """The text by which a level is compared: 1, 1.0 and "1" are one level, as are " a " and "a"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()
