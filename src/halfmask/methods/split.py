"""The split of a loss into a part that reads public values only and the rest, for linear models.

A row has a public part p (with a constant 1), a private part x and a coded label t. Scores are linear,
and the loss is the one whose gradient is (mean(score) - t) ⊗ (p, x): logistic, softmax or squared. The
public loss sees the row with its private part padded by zero, and with the label only where that is
public; otherwise a fixed middle value takes its place. What a row adds privately is the difference of
the two gradients. Guarantee: docs/proofs/sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from halfmask.errors import InputError
from halfmask.mechanisms.sampling import Indices
from halfmask.table import Table

Floats = NDArray[np.float64]
Family = Literal["logistic", "softmax", "squared"]

_MEANS: dict[Family, Callable[[Floats], Floats]] = {
    "logistic": expit,
    "softmax": lambda scores: softmax(scores, axis=1),
    "squared": lambda scores: scores,
}
# Units are summed explicitly, this many numbers at a time.
_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """Rows as the split loss sees them. Coefficients have the columns [public, constant, private].

    `target` is 0/1 for two classes, one-hot for more, and scaled to [-1, 1] for numbers. `middle` is
    what the public loss takes for a private label. With `public_loss=False` everything is private.
    """

    public: Floats
    private: Floats
    target: Floats
    middle: Floats
    family: Family
    label_private: bool
    public_loss: bool
    unit: NDArray[np.int64] | None

    @classmethod
    def of(cls, table: Table, *, everything_private: bool = False) -> SplitRows:
        """The rows of `table`; `everything_private` ignores that some columns are public."""
        target, family = coded_target(table)
        constant = np.ones((table.n, 1))
        nothing_public = table.label_private and not table.public.shape[1]
        width = target.shape[1]
        labels_only = table.label_private and not table.private.shape[1]
        # One-hot labels stay uncentred where they alone are private: two of them are orthogonal.
        centre = {"logistic": 0.5, "squared": 0.0, "softmax": 0.0 if labels_only else 1 / width}
        return cls(
            public=np.hstack([table.public, constant]),
            private=table.private,
            target=target,
            middle=np.full(width, centre[family]),
            family=family,
            label_private=table.label_private or everything_private,
            public_loss=not (nothing_public or everything_private),
            unit=table.unit,
        )

    @property
    def labels_only(self) -> bool:
        """Whether the private contribution is a function of the label and public features alone."""
        return self.public_loss and self.label_private and not self.private.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs x coefficients."""
        return self.target.shape[1], self.public.shape[1] + self.private.shape[1]

    def public_gradient(self, coef: Floats, rows: Indices) -> Floats:
        """The mean gradient of the public loss over `rows`: no private value is read."""
        gradient = np.zeros(self.shape)
        if self.public_loss and len(rows):
            padded = self.padded_residual(coef, rows)
            gradient[:, : self.public.shape[1]] = padded.T @ self.public[rows] / len(rows)
        return gradient

    def padded_residual(self, coef: Floats, rows: Indices) -> Floats:
        """mean(score) - label of the padded rows, the middle standing for a private label."""
        scores = self.public[rows] @ coef[:, : self.public.shape[1]].T
        label = self.middle if self.label_private else self.target[rows]
        return _MEANS[self.family](scores) - label

    def residual(self, coef: Floats, rows: Indices) -> Floats:
        """mean(score) - label of the full rows."""
        scores = self.public[rows] @ coef[:, : self.public.shape[1]].T
        scores = scores + self.private[rows] @ coef[:, self.public.shape[1] :].T
        return _MEANS[self.family](scores) - self.target[rows]

    def risk(self, coef: Floats) -> float:
        """The mean loss over all rows: not private, for experiments and tests."""
        scores = np.hstack([self.public, self.private]) @ coef.T
        if self.family == "squared":
            return float(np.mean((scores - self.target) ** 2) / 2)
        if self.family == "logistic":
            return float(np.mean(np.logaddexp(0, scores) - self.target * scores))
        level = np.logaddexp.reduce(scores, axis=1)
        return float(np.mean(level - (self.target * scores).sum(axis=1)))


def coded_target(table: Table) -> tuple[Floats, Family]:
    """The label as numbers, and the loss that goes with it."""
    if table.label is None:
        raise InputError("Training needs the label: pass it with the data.")
    if table.task == "regression":
        if table.label_bounds is None:
            raise InputError("A regression needs bounds of its label: declare them in the schema.")
        low, high = table.label_bounds
        values = np.clip(np.asarray(table.label, dtype=np.float64), low, high)
        return (2 * (values - low) / (high - low) - 1)[:, None], "squared"
    classes = 0 if table.classes is None else len(table.classes)
    if classes < 2:
        raise InputError(f"A classifier needs at least two classes, the table declares {classes}.")
    codes = np.asarray(table.label)
    if classes == 2:
        return codes.astype(np.float64)[:, None], "logistic"
    return np.eye(classes)[codes], "softmax"


class SplitContributions:
    """What each row, or each unit, adds to the private gradient at `coef`.

    (residual - padded residual) ⊗ p on the public columns and residual ⊗ x on the private ones.
    """

    def __init__(self, rows: SplitRows, coef: Floats) -> None:
        self._rows = rows
        self.coef = coef
        self._members = None if rows.unit is None else _Members(rows.unit)

    def norms(self, rows: Indices) -> Floats:
        """The Euclidean norm of each contribution."""
        if self._members is None:
            return self._row_norms(rows)
        found = [np.zeros(0)]
        for chunk in self._chunks(rows):
            members, starts = self._members.of(chunk)
            on_public, on_private = self._factors(members)
            square = np.zeros(len(chunk))
            for factor, block in (
                (on_public, self._rows.public[members]),
                (on_private, self._rows.private[members]),
            ):
                outer = factor[:, :, None] * block[:, None, :]
                if outer.size:
                    total = np.add.reduceat(outer.reshape(len(members), -1), starts, axis=0)
                    square += np.einsum("ij,ij->i", total, total)
            found.append(np.sqrt(square))
        return np.concatenate(found)

    def weighted_sum(self, rows: Indices, weights: Floats) -> Floats:
        """Σ weight · contribution, outputs x coefficients."""
        if self._members is not None:
            members, starts = self._members.of(rows)
            sizes = np.diff(np.append(starts, len(members)))
            rows, weights = members, np.repeat(weights, sizes)
        on_public, on_private = self._factors(rows)
        return np.hstack(
            [
                (on_public * weights[:, None]).T @ self._rows.public[rows],
                (on_private * weights[:, None]).T @ self._rows.private[rows],
            ]
        )

    def _factors(self, rows: Indices) -> tuple[Floats, Floats]:
        split = self._rows
        if split.labels_only:
            # Independent of the coefficients, and exact: the means of both losses are the same.
            factor = split.middle - split.target[rows]
            return factor, factor
        full = split.residual(self.coef, rows)
        if not split.public_loss:
            return full, full
        return full - split.padded_residual(self.coef, rows), full

    def _row_norms(self, rows: Indices) -> Floats:
        on_public, on_private = self._factors(rows)
        norms: Floats = np.sqrt(
            _squares(on_public) * _squares(self._rows.public[rows])
            + _squares(on_private) * _squares(self._rows.private[rows])
        )
        return norms

    def _chunks(self, units: Indices) -> Iterator[Indices]:
        assert self._members is not None
        size = max(1, _CHUNK // (int(np.prod(self._rows.shape)) * self._members.largest))
        for start in range(0, len(units), size):
            yield units[start : start + size]


class _Members:
    """The rows of each unit."""

    def __init__(self, unit: NDArray[np.int64]) -> None:
        self._order = np.argsort(unit, kind="stable")
        self._counts = np.bincount(unit)
        self._starts = np.cumsum(self._counts) - self._counts
        self.largest = int(self._counts.max(initial=1))

    def of(self, units: Indices) -> tuple[Indices, Indices]:
        """The rows of `units` one unit after the other, and where each unit starts."""
        counts = self._counts[units]
        starts = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(starts, counts)
        return self._order[np.repeat(self._starts[units], counts) + within], starts


def _squares(rows: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", rows, rows)
    return squares
