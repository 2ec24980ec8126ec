"""A table as the recipes of `mlp` read it: single precision rows of a network's inputs.

The rows are in memory, or in a file that is mapped into it (see neural.mapped); recipes cannot
tell, as long as they take rows by batches or blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.neural.inputs import Inputs
from halfmask.neural.pretrain import PublicRows
from halfmask.table import Table

Singles = NDArray[np.float32]
Codes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkRows:
    """`values` has the public features of each row, then its private ones, clipped already.

    `columns` numbers the column behind each public feature; `labels` are class codes.
    """

    inputs: Inputs
    values: Singles
    labels: Codes
    classes: int
    columns: Codes

    @classmethod
    def of(
        cls, table: Table, *, private_norm: float | None = None, shards: Shards = ALONE
    ) -> NetworkRows:
        """The rows of a table with a label of classes."""
        inputs = Inputs.of(table, private_norm=private_norm, shards=shards)
        return cls.of_values(table, inputs, inputs.rows(table))

    @classmethod
    def of_values(cls, table: Table, inputs: Inputs, values: Singles) -> NetworkRows:
        """Rows that were made elsewhere; of `table` the label and the declaration are read."""
        assert table.label is not None
        assert table.classes is not None
        sources = np.array(table.public_sources, dtype=str)[inputs.public_kept]
        return cls(
            inputs=inputs,
            values=values,
            labels=table.label.astype(np.int64),
            classes=len(table.classes),
            columns=np.unique(sources, return_inverse=True)[1].astype(np.int64),
        )

    @property
    def real(self) -> torch.Tensor:
        """All features of every row, sharing memory with `values`."""
        return torch.from_numpy(np.asarray(self.values))

    @property
    def shown(self) -> Singles:
        """The public features of every row."""
        return self.values[:, : len(self.inputs.public_kept)]

    @property
    def private(self) -> Singles:
        """The private features of every row, of norm at most `inputs.private_norm`."""
        return self.values[:, len(self.inputs.public_kept) :]

    @property
    def public(self) -> PublicRows:
        """What a network may be trained on for free."""
        return PublicRows(features=self.shown, columns=self.columns, labels=self.labels)


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive parts of at most `size` rows."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
