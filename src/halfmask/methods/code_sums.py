"""Scores and sums over rows of codes: looked-up weights and weighted counts, in blocks of rows.

Two columns share one packed code, so that a step over all rows is one look-up and one count per
pair. A block's codes stay in the processor's cache between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.scratch import Room
from halfmask.table import CodedColumn

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BLOCK = 1 << 15
# The most levels of two columns together: their table of weights stays in the cache.
_PACKED = 1 << 14
_FEW_ROWS = 1 << 17


class CodeSums:
    """The columns' codes, packed in pairs; `packed=False` serves sums and scores of pairs alone."""

    def __init__(self, columns: Sequence[CodedColumn], *, packed: bool = True) -> None:
        self.levels = [column.levels for column in columns]
        self._columns = columns
        self.rows = columns[0].rows if columns else 0
        self._packs: list[tuple[list[int], NDArray[np.integer]]] = []
        members = _pairs(self.levels) if packed else []
        kinds = [np.min_scalar_type(int(np.prod([self.levels[m] for m in ms]))) for ms in members]
        with Room(self.rows * sum(kind.itemsize for kind in kinds)) as room:
            for places, kind in zip(members, kinds, strict=True):
                self._packs.append((places, self._packed(places, kind, room)))

    def _packed(self, places: list[int], kind: np.dtype[Any], room: Room) -> NDArray[np.integer]:
        """One code for the levels of one column or two."""
        first = self._columns[places[0]]
        codes: NDArray[np.integer]
        if len(places) == 1 and first.held:
            codes = first.codes
        else:
            codes = room.zeros(self.rows, kind)
            for start in range(0, self.rows, BLOCK):
                at = slice(start, start + BLOCK)
                codes[at] = first.codes_of(at)
                for place in places[1:]:
                    codes[at] *= kind.type(self.levels[place])
                    codes[at] += self._columns[place].codes_of(at).astype(kind)
        # What few rows have is kept as numpy wants it, so that no step has to convert it.
        return codes.astype(np.intp) if self.rows <= _FEW_ROWS else codes

    def scores(self, weights: Sequence[Floats]) -> Floats:
        """Σ over columns of the weight of the row's level."""
        tables = self._tables(weights)
        found = np.zeros(self.rows)
        for start, codes in self._blocks():
            part = found[start : start + BLOCK]
            for table, code in zip(tables, codes, strict=True):
                part += table[code]
        return found

    def sums(self, values: Floats) -> list[Floats]:
        """For each column, `values` summed by level."""
        totals = self._totals()
        for start, codes in self._blocks():
            _count(totals, codes, values[start : start + BLOCK])
        return self._by_column(totals)

    def sums_at(
        self, weights: Sequence[Floats], value: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], float]:
        """`sums` of value(scores, rows) in one pass over the rows, and the total of the values."""
        tables, totals, total = self._tables(weights), self._totals(), 0.0
        for start, codes in self._blocks():
            scores = np.zeros(len(codes[0]) if codes else 0)
            for table, code in zip(tables, codes, strict=True):
                scores += table[code]
            values = value(scores, slice(start, start + len(scores)))
            _count(totals, codes, values)
            total += float(values.sum())
        return self._by_column(totals), total

    def class_sums_at(
        self, weights: Sequence[Floats], value: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], Floats]:
        """`sums_at` for tables of one weight per level and class: scores are classes x rows."""
        classes = weights[0].shape[1]
        tables = [self._tables([w[:, k] for w in weights]) for k in range(classes)]
        totals, total = [self._totals() for _ in range(classes)], np.zeros(classes)
        for start, codes in self._blocks():
            scores = np.zeros((classes, len(codes[0])))
            for score, own in zip(scores, tables, strict=True):
                for table, code in zip(own, codes, strict=True):
                    score += table[code]
            values = value(scores, slice(start, start + scores.shape[1]))
            for each, summed in zip(values, totals, strict=True):
                _count(summed, codes, each)
            total += values.sum(axis=1)
        by_class = [self._by_column(summed) for summed in totals]
        return [np.stack(parts) for parts in zip(*by_class, strict=True)], total

    def pair_sums(
        self,
        maps: Sequence[Indices],
        sizes: Sequence[int],
        values: Floats,
        *,
        pairs: Iterable[tuple[int, int]] | None = None,
    ) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
        """`values` summed by group and by pairs of groups (i > j); `maps` from levels to groups.

        `pairs` names the pairs that are wanted; all are, unless told.
        """
        alone = [np.zeros(size) for size in sizes]
        if pairs is None:
            pairs = [(i, j) for i in range(len(sizes)) for j in range(i)]
        totals = {(i, j): np.zeros(sizes[i] * sizes[j]) for i, j in pairs}
        both = np.empty(min(BLOCK, self.rows), dtype=np.intp)
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            some = values[at]
            groups = [c.mapped(found, at) for found, c in zip(maps, self._columns, strict=True)]
            # Added row by row, so that the rounding is that of one sum over all rows.
            for total, group in zip(alone, groups, strict=True):
                np.add.at(total, group, some)
            for (i, j), total in totals.items():
                pair = np.multiply(groups[i], sizes[j], out=both[: len(some)])
                np.add.at(total, np.add(pair, groups[j], out=pair), some)
        return alone, {
            (i, j): total.reshape(sizes[i], sizes[j]) for (i, j), total in totals.items()
        }

    def pair_scores(
        self, alone: Sequence[Floats], pairs: Mapping[tuple[int, int], Floats]
    ) -> Floats:
        """Σ of the weights of the row's levels and of those of its pairs of levels (i > j)."""
        found = np.zeros(self.rows)
        tables = {(i, j): np.ascontiguousarray(table).ravel() for (i, j), table in pairs.items()}
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            part = found[at]
            levels = [column.codes_of(at).astype(np.intp) for column in self._columns]
            for table, level in zip(alone, levels, strict=True):
                part += table[level]
            for (i, j), table in tables.items():
                part += table[levels[i] * self.levels[j] + levels[j]]
        return found

    def _blocks(self) -> Iterator[tuple[int, list[Indices]]]:
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            yield start, [codes[at].astype(np.intp, copy=False) for _, codes in self._packs]

    def _tables(self, weights: Sequence[Floats]) -> list[Floats]:
        tables = []
        for members, _ in self._packs:
            table = np.asarray(weights[members[0]], dtype=np.float64)
            if len(members) == 2:
                table = np.add.outer(table, weights[members[1]]).ravel()
            tables.append(table)
        return tables

    def _totals(self) -> list[Floats]:
        sizes = [[self.levels[member] for member in members] for members, _ in self._packs]
        return [np.zeros(int(np.prod(size))) for size in sizes]

    def _by_column(self, totals: Sequence[Floats]) -> list[Floats]:
        found: list[Floats] = [np.zeros(0)] * len(self.levels)
        for (members, _), total in zip(self._packs, totals, strict=True):
            if len(members) == 1:
                found[members[0]] = total
            else:
                both = total.reshape([self.levels[member] for member in members])
                found[members[0]], found[members[1]] = both.sum(axis=1), both.sum(axis=0)
        return found


def _pairs(levels: Sequence[int]) -> list[list[int]]:
    """Columns by twos, the widest first, each with the widest other that fits."""
    found = []
    waiting = sorted(range(len(levels)), key=lambda place: -levels[place])
    while waiting:
        first = waiting.pop(0)
        second = next((p for p in waiting if levels[first] * levels[p] <= _PACKED), None)
        if second is not None:
            waiting.remove(second)
        found.append([first] if second is None else [first, second])
    return found


def _count(totals: list[Floats], codes: list[Indices], values: Floats) -> None:
    for total, code in zip(totals, codes, strict=True):
        np.add(total, np.bincount(code, values, minlength=len(total)), out=total)
