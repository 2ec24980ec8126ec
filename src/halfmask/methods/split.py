"""The split of a loss into a part that reads public values only and the rest, for linear models.

A row has a public part p (with a constant 1), a private part x and a target. The gradient of its
loss is slope ⊗ (p, x). The public loss sees the row with its private part padded by zero, and the
target only where the label is public. What a row adds privately is the difference of the gradients.
Guarantee: docs/proofs/sgd.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfmask.losses import Loss, default_loss, loss_named, public_slope
from halfmask.mechanisms.private_step import WeighedRows
from halfmask.mechanisms.sampling import Indices
from halfmask.methods.coded_rows import feature_rows
from halfmask.methods.targets import coded_targets
from halfmask.row_products import Rows, block, parts_of
from halfmask.table import Table

Floats = NDArray[np.float64]

# Units are summed explicitly, this many numbers at a time.
_CHUNK = 1 << 22


class BatchRows:
    """Features of rows, with a constant 1 behind them if asked for; made for the rows in use."""

    def __init__(self, rows: Rows, *, constant: bool) -> None:
        self._rows, self._constant = rows, constant
        self.shape = (len(rows), rows.shape[1] + constant)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Indices) -> Floats:
        made = block(self._rows, rows)
        return np.hstack([made, np.ones((len(made), 1))]) if self._constant else made

    def squares(self) -> Floats:
        """The squared length of each row."""
        found = [_squares(self[part]) for part in parts_of(len(self))]
        return np.concatenate([np.zeros(0), *found])


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """Rows as the split loss sees them. Coefficients have the columns [public, constant, private].

    With `public_loss=False` the public loss is zero and everything is private. `skipped` rows have
    no label, and a slope of zero.
    """

    public: BatchRows
    private: BatchRows
    target: Floats
    loss: Loss
    label_private: bool
    public_loss: bool
    unit: NDArray[np.int64] | None
    rows_per_unit: int = 1
    skipped: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, table: Table, *, loss: str | None = None, everything_private: bool = False
    ) -> SplitRows:
        """The rows of `table`; `everything_private` ignores that some columns are public."""
        classes = 0 if table.classes is None else len(table.classes)
        chosen = loss_named(loss or default_loss(classes), classes=classes)
        # Without the target a public loss needs public features, and a loss that splits.
        splits = chosen.linear_in_target and table.widths[0] > 0
        public, private = (feature_rows(table, private=each) for each in (False, True))
        return cls(
            public=BatchRows(public, constant=True),
            private=BatchRows(private, constant=False),
            target=coded_targets(table, chosen.outputs),
            loss=chosen,
            label_private=table.label_private or everything_private,
            public_loss=not everything_private and (splits or not table.label_private),
            unit=table.unit,
            rows_per_unit=table.rows_per_unit,
            skipped=table.skipped,
        )

    @property
    def labels_only(self) -> bool:
        """Whether contributions follow from the label and public features, whatever the weights."""
        return self.public_loss and self.label_private and not self.private.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs x coefficients."""
        return self.target.shape[1], self.public.shape[1] + self.private.shape[1]

    def public_gradient(self, coef: Floats, rows: Indices) -> Floats:
        """The mean gradient of the public loss over `rows`: no private value is read."""
        gradient = np.zeros(self.shape)
        if self.public_loss and len(rows):
            block = self.public[rows]
            padded = self.padded_slope(block @ coef[:, : self.public.shape[1]].T, rows)
            gradient[:, : self.public.shape[1]] = padded.T @ block / len(rows)
        return gradient

    def padded_slope(self, scores: Floats, rows: Indices) -> Floats:
        """The public loss's slope at the padded rows, whose scores are given."""
        return public_slope(self.loss, scores, None if self.label_private else self.target[rows])

    def risk(self, coef: Floats) -> float:
        """The mean loss over all rows: not private, for experiments and tests."""
        scores = np.hstack([self.public[:], self.private[:]]) @ coef.T
        return float(np.mean(self.loss.value(scores, self.target)))


class SplitContributions(WeighedRows):
    """What each row, or each unit, adds to the private gradient at `coef`.

    (slope - padded slope) ⊗ p on the public columns and slope ⊗ x on the private ones.
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
            for factor, made in (
                (on_public, self._rows.public[members]),
                (on_private, self._rows.private[members]),
            ):
                outer = factor[:, :, None] * made[:, None, :]
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
            # The label's part alone, zero without one: what scores add is the same in both losses.
            factor = split.loss.fixed_slope(split.target[rows])
            return factor, factor
        width = split.public.shape[1]
        padded = split.public[rows] @ self.coef[:, :width].T
        scores = padded + split.private[rows] @ self.coef[:, width:].T
        full = split.loss.slope(scores, split.target[rows])
        if split.skipped is not None:
            full[split.skipped[rows]] = 0.0
        if not split.public_loss:
            return full, full
        return full - split.padded_slope(padded, rows), full

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
