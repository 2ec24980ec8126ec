"""Filling in private columns without private values: g(f(x)) of the feature-DP paper.

| name | the private columns become | costs |
|---|---|---|
| `gaussian` | N(0, 1), afresh each time | nothing |
| `gaussian-once` | N(0, 1), one draw for all rows and steps | nothing |
| `zero` | the first level, the lower bound | nothing |
| `middle` | one half: the middle of the bounds | nothing |
| `means` | released column means | a release |
| `class-means` | released means of the row's class (public label) | a release |
| `class-samples` | levels drawn from the class means, afresh each time | a release |

Constants and means are `StructuredRows`, the fast kind. What is drawn for a private batch comes
from a generator of its own, never from that of the public batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from halfmask.errors import InputError
from halfmask.neural.inputs import Inputs
from halfmask.types import Floats, Integers

PaddingName = Literal[
    "gaussian", "gaussian-once", "zero", "middle", "means", "class-means", "class-samples"
]
PADDINGS: tuple[str, ...] = get_args(PaddingName)
PAID = ("means", "class-means", "class-samples")
BY_CLASS = ("class-means", "class-samples")


@dataclass(frozen=True, kw_only=True, eq=False)
class Padding:
    """`table` has one line, or one per class; rows of a drawn padding differ each time."""

    name: PaddingName
    table: Floats
    inputs: Inputs

    @property
    def drawn(self) -> bool:
        """Whether two paddings of one row differ."""
        return self.name in ("gaussian", "class-samples")

    def lines(self, labels: Integers) -> Integers:
        """Which line of the table each row takes."""
        return labels if len(self.table) > 1 else np.zeros(len(labels), dtype=np.int64)

    def fill(self, labels: Integers, generator: np.random.Generator) -> Floats:
        """Private columns for rows of these (public) labels, of norm at most `private_norm`."""
        if self.name == "gaussian":
            return generator.standard_normal((len(labels), self.table.shape[1]))
        if self.name != "class-samples":
            return self.table[self.lines(labels)]
        # Numbers are not drawn; they are scaled with the levels beside them.
        chances = self.table / self._scales()[:, None]
        filled = _draw_levels(chances, self.lines(labels), self.inputs, generator)
        norms = np.sqrt(np.einsum("ij,ij->i", filled, filled))
        factor = self.inputs.private_norm / np.maximum(norms, 1e-12)
        if not self.inputs.scaled_up:
            factor = np.minimum(1.0, factor)
        return filled * np.where(norms > 0, factor, 1.0)[:, None]

    def _scales(self) -> Floats:
        """By how much the rows behind each line were scaled to the norm, as the means tell.

        Rows of k ones that were scaled by s = norm/√k have a mean that sums to k·s = norm²/s.
        """
        total = np.maximum(self.table.sum(axis=1), 1e-12)
        scales: Floats = self.inputs.private_norm**2 / total
        return scales if self.inputs.scaled_up else np.minimum(1.0, scales)


def free_padding(name: str, inputs: Inputs, generator: np.random.Generator) -> Padding:
    """A padding that reads no data at all; `generator` draws what is drawn once."""
    if name not in PADDINGS or name in PAID:
        why = "has to be paid for" if name in PAID else "does not exist"
        free = ", ".join(other for other in PADDINGS if other not in PAID)
        raise InputError(f"Padding {name!r} {why}: expected {free}.")
    if name == "gaussian-once":
        drawn = generator.standard_normal((1, len(inputs.kept)))
        return Padding(name="gaussian-once", table=drawn, inputs=inputs)
    value = 0.5 if name == "middle" else 0.0
    table = np.full((1, len(inputs.kept)), value)
    norm = float(np.linalg.norm(table))
    if norm > inputs.private_norm:
        table *= inputs.private_norm / norm
    return Padding(name=name, table=table, inputs=inputs)  # type: ignore[arg-type]


def _draw_levels(
    chances: Floats, lines: Integers, inputs: Inputs, generator: np.random.Generator
) -> Floats:
    """One level per category, by the chances of a row's line (the first level has what is left)."""
    # Along the features of a column, a level is drawn where the cumulated chance passes a uniform.
    cumulated = np.cumsum(chances, axis=1)
    starts = np.flatnonzero(np.diff(inputs.group, prepend=-1))
    before = np.where(starts > 0, cumulated[:, starts - 1], 0.0)[:, inputs.group]
    upper = (cumulated - before).astype(np.float32)
    lower = upper - chances.astype(np.float32)
    uniforms = generator.random((len(lines), len(starts)), dtype=np.float32)
    if len(starts) < len(inputs.group):
        uniforms = uniforms[:, inputs.group]
    drawn = ((uniforms < upper[lines]) & (uniforms >= lower[lines])).astype(np.float64)
    if not inputs.sampled.all():
        drawn[:, ~inputs.sampled] = chances[:, ~inputs.sampled][lines]
    return drawn
