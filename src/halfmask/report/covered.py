"""Scores that the guarantee covers: released by the training itself, with bars for their noise."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
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
SCORE_HEADINGS = ["Score", "Value", "Bar"]
RELIABILITY_HEADINGS = ["Predicted", "Observed", "Bar"]
_NAMES = {"log_loss": "log loss", "auc": "AUC", "accuracy": "accuracy", "rmse": "RMSE"}


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
    constant: float | None = None  # the log loss of the base rate alone
    public_alone: Mapping[str, float] = field(default_factory=dict)  # of the free model

    def to_json(self) -> dict[str, Any]:
        """The scores as a JSON object."""
        return {
            "covered_by_guarantee": True,
            **{name: score.value for name, score in self.scores.items()},
            **{f"{name}_bar": score.bar for name, score in self.scores.items()},
            "constant_log_loss": self.constant,
            "public_columns_alone": dict(self.public_alone),
            "reliability": [part._asdict() for part in self.reliability],
        }

    @property
    def compared(self) -> str | None:
        """The model beside the base rate and the public columns alone, in a sentence or two."""
        if self.constant is None or "log_loss" not in self.scores:
            return self._public_told
        loss = self.scores["log_loss"]
        told = f"To compare, the base rate alone has log loss {self.constant:.4g}."
        if self._public_told is not None:
            told = f"{told} {self._public_told}"
        if loss.value >= self.constant:
            return f"{told} This model is no better than a constant."
        if loss.bar is not None and loss.value + loss.bar >= self.constant:
            return f"{told} Within its bar, this model may be no better than a constant."
        return told

    @property
    def _public_told(self) -> str | None:
        for name, value in self.public_alone.items():
            told = f"The public columns alone have {_NAMES[name]} {value:.4g}"
            return f"{told}, on rows that were left out: label and columns are public."
        return None

    def score_rows(self) -> list[list[str]]:
        """Rows under SCORE_HEADINGS."""
        return [
            [_NAMES[name], f"{s.value:.4g}", "not stored" if s.bar is None else f"± {s.bar:.2g}"]
            for name, s in self.scores.items()
        ]

    def reliability_rows(self) -> list[list[str]]:
        """Rows under RELIABILITY_HEADINGS."""
        return [
            [f"{part.predicted:.3f}", f"{part.observed:.3f}", f"± {part.bar:.2g}"]
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


def _entropy(rate: Any) -> float | None:
    """The log loss of giving every row the chance `rate`, which is right on average."""
    if not isinstance(rate, float) or not 0 < rate < 1:
        return None
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def words(seeded: bool) -> str:
    """What covers the scores, in words."""
    return SEEDED if seeded else COVERED


def covered_scores(details: Mapping[str, Any]) -> Covered | None:
    """What the details of a model hold; None where its training released no score."""
    stored = details.get("covered")
    if not isinstance(stored, Mapping):
        return None

    def read() -> Covered:
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
            constant=_entropy(details.get("base")) if "log_loss" in stored else None,
            public_alone={
                name: float(value)
                for name, value in (details.get("free_score") or {}).items()
                if name in _NAMES and value is not None
            },
        )

    return rebuilt(read, "its covered scores")
