"""Scores that the guarantee covers: released by the training itself, with bars for their noise."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from halfmask.model_folder import rebuilt

COVERED = (
    "On the training rows, released with noise and paid for: covered by the guarantee. They may be "
    "shown wherever the model may. In about 19 of 20 cases the same score on as many other rows "
    "lies within the bar."
)
SEEDED = (
    "On the training rows, released with noise like the rest of the training: the guarantee would "
    "cover them, had the noise not been reproducible. In about 19 of 20 cases the same score on as "
    "many other rows lies within the bar."
)
NONE_CLEAR = (
    "No reliability curve: for so few rows and so much noise, no part of the scores holds clearly "
    "more rows than noise."
)
CONSTANT = (
    "This model is a constant: for so few rows and so small a budget it gives every row the same "
    "answer. More rows, a larger epsilon or a public label may help; halfmask check says how much."
)
ALL_PUBLIC = "Every column is public: these are the scores of the public columns alone."
WEIGHED = (
    "Rows of people with many rows count less in these scores: scores by row, as halfmask evaluate "
    "tells them, may differ by more than the bar."
)
SCORE_HEADINGS = ["Score", "Value", "Bar"]
RELIABILITY_HEADINGS = ["Predicted", "Observed", "Bar"]
_NAMES = {"log_loss": "log loss", "auc": "AUC", "accuracy": "accuracy", "rmse": "RMSE"}


def _figure(value: float, digits: int = 2) -> str:
    """A number to so many digits, written out: no 2.5e+02."""
    short = f"{value:.{digits}g}"
    return f"{float(short):,.0f}" if "e+" in short else short


class Score(NamedTuple):
    """One number and its bar, None where an older model stored none."""

    value: float
    bar: float | None


class ReliabilityBin(NamedTuple):
    """Rows of similar scores: the share that was predicted and the one observed."""

    predicted: float
    observed: float
    bar: float


@dataclass(frozen=True, kw_only=True)
class Covered:
    """What a training released about its own quality; a number to predict has no reliability."""

    scores: Mapping[str, Score]
    reliability: tuple[ReliabilityBin, ...]
    classes: bool
    constant: float | None = None  # log loss, or RMSE, of the base rate alone
    base: float | list[float] | None = None  # share of the second class, or each, or the mean
    public_alone: Mapping[str, Score] = field(default_factory=dict)  # without a bar: a free model's
    all_public: bool = False  # all columns, under a private label
    weighed: bool = False  # rows of large units count less

    def to_json(self) -> dict[str, Any]:
        """The scores as a JSON object."""
        return {
            "covered_by_guarantee": True,
            **{name: score.value for name, score in self.scores.items()},
            **{f"{name}_bar": score.bar for name, score in self.scores.items()},
            "base_rate": self.base,
            "constant_log_loss": self.constant if self.classes else None,
            "constant_rmse": None if self.classes else self.constant,
            "public_columns_alone": {
                **{name: score.value for name, score in self.public_alone.items()},
                **{f"{name}_bar": score.bar for name, score in self.public_alone.items()},
            },
            "weighed_rows": self.weighed,
            "compared": self.compared,
            "reliability": [part._asdict() for part in self.reliability],
        }

    @property
    def compared(self) -> str | None:
        """The model beside the base rate and the public columns alone, in a few sentences."""
        told = [*self._constant_told(), *self._public_told(), *([WEIGHED] * self.weighed)]
        return " ".join(told) or None

    @property
    def _main(self) -> str:
        return "log_loss" if self.classes else "rmse"

    def _constant_told(self) -> Iterator[str]:
        if self.constant is None or self._main not in self.scores:
            return
        what = "the base rate alone has" if self.classes else "the mean alone has about"
        yield f"To compare, {what} {_NAMES[self._main]} {_figure(self.constant, 4)}."
        value, bar = self.scores[self._main]
        if value >= self.constant:
            yield "This model is no better than a constant."
        elif bar is not None and value + bar >= self.constant:
            yield "Within its bar, this model may be no better than a constant."

    def _public_told(self) -> Iterator[str]:
        if self.all_public:
            yield ALL_PUBLIC
        for name, alone in self.public_alone.items():
            told = f"The public columns alone have {_NAMES[name]} {_figure(alone.value, 4)}"
            if alone.bar is None:
                yield f"{told}, on rows that were left out: label and columns are public."
            else:
                bar_told = f"± {_figure(alone.bar)}"
                yield f"{told} {bar_told}, released with noise and paid for like the rest."
            value, bar = self.scores.get(name, alone)
            if value + math.hypot(bar or 0.0, alone.bar or 0.0) >= alone.value:
                yield "Within the bars, the private columns may add nothing to them."

    def score_rows(self) -> list[list[str]]:
        """Rows under SCORE_HEADINGS."""
        return [
            [
                _NAMES[name],
                _figure(s.value, 4),
                "not stored" if s.bar is None else f"± {_figure(s.bar)}",
            ]
            for name, s in self.scores.items()
        ]

    def reliability_rows(self) -> list[list[str]]:
        """Rows under RELIABILITY_HEADINGS."""
        return [
            [f"{part.predicted:.3f}", f"{part.observed:.3f}", f"± {_figure(part.bar)}"]
            for part in self.reliability
        ]

    def text(self, *, seeded: bool) -> str:
        """The scores in a few lines, for a terminal."""
        lines = ["Scores covered by the guarantee:", *textwrap.wrap(words(seeded), 80)]
        lines += [f"  {name:<10}{value} {bar}" for name, value, bar in self.score_rows()]
        if self.compared is not None:
            lines += textwrap.wrap(self.compared, 80)
        if self.reliability:
            lines.append("  predicted  observed")
            lines += [f"  {p:<11}{o} {bar}" for p, o, bar in self.reliability_rows()]
        elif self.classes:
            lines += textwrap.wrap(NONE_CLEAR, 80)
        return "\n".join(lines)


def _constant(details: Mapping[str, Any], *, classes: bool) -> float | None:
    """The log loss (RMSE) of one answer to all rows, which is right on average."""
    base = details.get("base")
    if not classes:
        spread = details.get("spread")
        return None if spread is None else float(spread)
    shares = [base, 1 - base] if isinstance(base, float) else list(base or ())
    if not shares or not all(0 < float(share) < 1 for share in shares):
        return None
    return -sum(share * math.log(share) for share in shares)


def constant_words(details: Mapping[str, Any], classes: Sequence[Any] | None) -> str:
    """What is to be said of a model that is a constant, and which constant it is."""
    base, told = details.get("base"), "the share of each class"
    if isinstance(base, float):
        what = "the mean" if classes is None else f"the share of {str(classes[-1])!r}"
        told = f"{what}, {_figure(base, 4)}"
    return f"{CONSTANT} Its answer is {told}: released with noise."


def words(seeded: bool) -> str:
    """What covers the scores, in words."""
    return SEEDED if seeded else COVERED


def _alone(details: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Score]:
    """Of the public columns alone: a free model's, or what the same release tells of them."""
    free, released = details.get("free_score") or {}, stored.get("public_alone") or {}
    found = {name: Score(float(free[name]), None) for name in _NAMES if name in free}
    for name in _NAMES:
        if name in released:
            found[name] = Score(float(released[name]), float(released[f"{name}_bar"]))
    return found


def covered_scores(details: Mapping[str, Any]) -> Covered | None:
    """What the details of a model hold; None where its training released no score."""
    stored = details.get("covered")
    if not isinstance(stored, Mapping):
        return None

    def read() -> Covered:
        plan = details.get("plan") or {}
        bars = {name: stored.get(f"{name}_bar") for name in _NAMES}
        return Covered(
            scores={
                name: Score(
                    float(stored[name]), None if (bar := bars[name]) is None else float(bar)
                )
                for name in _NAMES
                if stored.get(name) is not None
            },
            reliability=tuple(
                ReliabilityBin(*(float(part[name]) for name in ReliabilityBin._fields))
                for part in stored.get("reliability") or ()
            ),
            classes="log_loss" in stored,
            constant=_constant(details, classes="log_loss" in stored),
            base=details.get("base"),
            public_alone=_alone(details, stored),
            all_public=bool(plan.get("public")) and not plan.get("descent"),
            weighed=bool(details.get("weighed_rows")),
        )

    return rebuilt(read, "its covered scores")
