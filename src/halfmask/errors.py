"""Every error a user can meet.

    HalfmaskError
    ├── InputError (ValueError)            the data, the schema or an option is wrong; exit 2
    │   ├── SchemaError                    the declaration of the columns
    │   └── DataError                      a file or frame that does not fit the declaration
    ├── LedgerError (ValueError)           a truncated or edited ledger; exit 2
    ├── AccountingError (ArithmeticError)  no trustworthy number; exit 2
    ├── BudgetExceededError                the ledger refuses a charge; exit 3
    ├── MachineLostError                   another machine of a run has ended; exit 2
    ├── ReplayError                        a replay does not follow the recorded training; exit 2
    └── ClaimRefutedError                  an audit found more leakage than was claimed; exit 4

Messages name the column and row, quote public words only (never a value of a private column), and
say what to do. They also inherit the exceptions that users of scikit-learn already catch.
"""

import ast
import difflib
import math
import os
import re
from collections.abc import Iterable
from typing import Any

# "Column 'age', row 7: ..." is how every message names its place.
_PLACE = re.compile(
    r"\bcolumn ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?:, row (\d+)\b)?", re.IGNORECASE
)


def place(message: str) -> tuple[str | None, int | None]:
    """The column and the data row that a message names first; None where it names none."""
    found = _PLACE.search(message)
    if found is None:
        return None, None
    return ast.literal_eval(found[1]), None if found[2] is None else int(found[2])


class HalfmaskError(Exception):
    """Base of every error of this package; `exit_code` is what the command line ends with."""

    exit_code = 2

    def to_json(self) -> dict[str, object]:
        """What `--json` prints instead of a result: the kind, the words and the place."""
        kind = re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__.removesuffix("Error")).lower()
        column, row = place(str(self))
        return {"kind": kind, "message": str(self), "column": column, "row": row}


class InputError(HalfmaskError, ValueError):
    """An option, a file or a frame is not what was expected."""


class SchemaError(InputError):
    """The declaration of the columns is wrong or incomplete."""


class DataError(InputError):
    """The data does not fit the declaration."""


class LedgerError(HalfmaskError, ValueError):
    """The ledger cannot be trusted: truncated, edited, or not a ledger."""


class AccountingError(HalfmaskError, ArithmeticError):
    """The accountant cannot give a trustworthy number for these parameters."""


class BudgetExceededError(HalfmaskError):
    """A charge would spend more than the ledger allows; nothing was released."""

    exit_code = 3


class MachineLostError(HalfmaskError):
    """Another machine of the run has ended or cannot be reached."""


class ReplayError(HalfmaskError):
    """A replayed training plans, shapes or scales its releases otherwise than the recorded one."""


class ClaimRefutedError(HalfmaskError):
    """An audit's lower bound lies above the claimed epsilon."""

    exit_code = 4


def raised_at(error: Exception) -> str:
    """File and line of this package that raised it, or called what did."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if f"{os.sep}halfmask{os.sep}" in file:
            place = f"{os.path.basename(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def suggest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


# --- What every configuration asks of its settings.


def check_positive(config: Any, *names: str, zero: bool = False) -> None:
    """Refuse settings that are neither None nor finite and > 0, or with `zero` >= 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (0 < value < math.inf or (zero and value == 0)):
            raise InputError(f"Expected a finite {name} {'>=' if zero else '>'} 0, got {value}.")


def check_below_one(config: Any, *names: str) -> None:
    """Refuse settings that are no shares kept of what was before: from 0 to below 1."""
    if not all(0 <= getattr(config, name) < 1 for name in names):
        raise InputError(f"Expected {' and '.join(names)} in [0, 1).")


def check_one_of(config: Any, **known: tuple[str, ...]) -> None:
    """Refuse settings that are none of the known words."""
    for name, words in known.items():
        value = getattr(config, name)
        if value not in words:
            listed = f"{', '.join(words[:-1])} or {words[-1]}"
            raise InputError(f"Unknown {name} {value!r}: expected {listed}.")
