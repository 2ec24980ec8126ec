"""What a model learnt, column by column, with bars that say how much of it may be noise.

An effect is what a level of a column adds to a score (log odds, or the label's own unit), against
the average row. Its bar is about noise alone: it is found by training again and again, with fresh
noise of the same strength, on rows that are imagined from the model and its released counts. So
everything here follows from the model; no row of the data is read, and nothing is charged.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, log_expit, ndtr, softmax
from scipy.stats import t as student

from halfmask.accounting.budget import Budget
from halfmask.data.encoding import Coding, Grid, Levels, Scaled
from halfmask.errors import InputError, suggest
from halfmask.progress import part_of
from halfmask.table import CodedFeatures, Encoder, KeptColumn, Table
from halfmask.types import Floats

if TYPE_CHECKING:
    from halfmask.methods.additive import AdditiveFit
    from halfmask.methods.additive_pairs import PairWeights
    from halfmask.model import Model


DRAWS, FEWER_DRAWS, _MANY_COLUMNS = 12, 6, 60
"""Trainings on imagined rows, and how many where columns are more than so many, since each takes
seconds there; their spread is known to about a fifth (a third), which bars allow for."""
MOST_ROWS = 8000
"""Rows that are imagined at most: with fewer rows than the data had, noise is made weaker."""
_ASKED = 200
"""Imagined rows over which the effect of a column in a model of trees is averaged."""
_CORRELATED = 0.5
"""How closely imagined columns follow one another, as columns of real tables do."""
_MISSING = 0.02
"""The part of imagined cells that is missing or other where no counts were released."""
_ALLOWANCE, _BESIDE, _UNCOUNTED, _SEVERAL = 1.2, 2.5, 2.2, 2.0
"""By how much bars are widened, since imagined rows are not the real ones; the second where private
columns add to public ones: one draw of noise decides how far they are shrunk; the third where
no counts of levels were released; the last, at least, of several classes (docs/effects.md)."""
WITH_BARS = ("additive", "gd")
"""Methods whose bars were held against fresh noise. What noise does to others hangs on products of
columns that nothing releases."""
_NORMAL = 1.96
_POINTS = 9
"""Places at which the effect of a column kept as a number is told."""


@dataclass(frozen=True)
class Row:
    """One level, or neighbours with one effect: what it adds, its bar, and its part of rows."""

    level: str
    value: float
    low: float
    high: float
    share: float
    by_noise: bool

    def follows(self, other: Row) -> bool:
        """Whether `other` is told from this one by its name alone."""
        ranges = ".." in self.level and ".." in other.level
        return ranges and (self.value, self.low, self.high) == (other.value, other.low, other.high)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What each level of a column adds, against the average row, to the score of `outcome`.

    Attributes
    ----------
    column, role, outcome : str
        The column, whether it is private, and the class (or label) whose score it adds to.
    levels : tuple of str
        Names of bins and categories.
    values : tuple of float
        What each level adds.
    low, high : tuple of float
        The ends of the bars: training again with other noise gives, on average, an effect within
        them in 19 of 20 cases.
    share : tuple of float or None
        The part of rows with a level, noisy for private columns; None where nothing was released.
    ordered : bool
        Whether levels are those of a number or date.
    """

    column: str
    role: Literal["public", "private"]
    outcome: str
    levels: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    share: tuple[float, ...] | None
    ordered: bool

    @property
    def size(self) -> float:
        """How much the column matters: the typical distance of a row's effect from the average."""
        weights = np.asarray(self.share if self.share is not None else np.ones(len(self.values)))
        total = float(weights.sum()) or 1.0
        return math.sqrt(float(weights @ np.square(self.values)) / total)

    @property
    def by_noise(self) -> tuple[bool, ...]:
        """Of each level: whether noise alone could have made its effect."""
        return tuple(
            low <= 0 <= high and high > low for low, high in zip(self.low, self.high, strict=True)
        )

    @property
    def clear(self) -> bool:
        """Whether some level that rows have has an effect that noise could not have made."""
        shares = self.share or (1.0,) * len(self.values)
        rows = zip(self.by_noise, self.values, shares, strict=True)
        return any(not noise and value != 0 and share > 0 for noise, value, share in rows)

    def rows(self, most: int | None = None) -> list[Row]:
        """The levels as they are shown: neighbours with one effect together, those of nobody left
        out; of more than `most` categories those that matter most.
        """
        shares = self.share or (math.nan,) * len(self.values)
        parts = zip(
            self.levels, self.values, self.low, self.high, shares, self.by_noise, strict=True
        )
        rows: list[Row] = []
        for row in (Row(*part) for part in parts):
            last = rows[-1] if rows else None
            if self.ordered and last is not None and last.follows(row):
                both = last.share + row.share
                joined = f"{last.level.split('..')[0]}..{row.level.split('..')[-1]}"
                rows[-1] = replace(last, level=joined, share=both)
            else:
                rows.append(row)
        seen = [row for row in rows if row.share != 0] or rows
        if most is None or len(seen) <= most:
            return seen
        if self.ordered:
            kept = np.unique(np.linspace(0, len(seen) - 1, most).astype(int))
            return [seen[place] for place in kept]
        heavy = sorted(seen, key=lambda row: -abs(row.value) * (row.share if row.share > 0 else 1))
        return [row for row in seen if row in heavy[:most]]

    def to_json(self) -> dict[str, Any]:
        """The effect as a JSON object."""
        return {**asdict(self), "by_noise": self.by_noise, "size": self.size}


class Effects(Sequence[Effect]):
    """The effects of all columns, those that matter most first; `effects["age"]` finds one.

    They are found when first looked at. With more than two classes each column has one for each:
    `effects["age", "B"]` is that on the score of class B, and `effects["age"]` is a KeyError.

    Examples
    --------
    >>> from halfmask import HalfmaskClassifier
    >>> from halfmask.datasets import load_adult
    >>> train, test, schema = load_adult()
    >>> model = HalfmaskClassifier(schema, epsilon=4.0, method="gd").fit(train.slice(0, 500))
    >>> age = model.effects_["age"]
    >>> print(len(age.values) == len(age.levels) == len(age.low))
    True
    """

    def __init__(self, find: Callable[[], Sequence[Effect]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> tuple[Effect, ...]:
        return tuple(sorted(self._find(), key=lambda effect: -effect.size))

    def __len__(self) -> int:
        return len(self._found)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What scores are of: the second of two classes, each of more, or the label itself."""
        return tuple(dict.fromkeys(effect.outcome for effect in self._found))

    @overload
    def __getitem__(self, key: int | str | tuple[str, Any]) -> Effect: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Effect]: ...
    def __getitem__(self, key: int | str | tuple[str, Any] | slice) -> Effect | Sequence[Effect]:
        if not isinstance(key, str | tuple):
            return self._found[key]
        column, *outcome = (key,) if isinstance(key, str) else key
        found = [effect for effect in self._found if effect.column == column]
        if not found:
            hint = suggest(str(column), [effect.column for effect in self._found])
            raise KeyError(f"No column {column!r} in this model.{hint}")
        if not outcome and len(found) == 1:
            return found[0]
        for effect in found:
            if [effect.outcome] == [str(each) for each in outcome]:
                return effect
        listed = ", ".join(map(repr, self.outcomes))
        if outcome:
            asked = ", ".join(map(repr, outcome))
            raise KeyError(f"No effect of {column!r} on {asked}: expected one of {listed}.")
        raise KeyError(
            f"Column {column!r} has an effect on each of {listed}: name one, as in "
            f"effects[{column!r}, {found[0].outcome!r}]."
        )

    def to_json(self) -> list[dict[str, Any]]:
        """All effects as JSON objects."""
        return [effect.to_json() for effect in self._found]

    def __repr__(self) -> str:
        # A diagram of an estimator asks every attribute for this: it must cost nothing.
        return "Effects by column (print them to see them)"

    def __str__(self) -> str:
        lines = ["Effects by column, those that matter most first:"]
        for effect in self._found[:20]:
            told = "" if effect.clear else "  (noise could have made it)"
            name = (
                effect.column if len(self.outcomes) == 1 else f"{effect.column}: {effect.outcome}"
            )
            lines.append(f"  {effect.size:6.3f}  {name}{told}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        try:
            from halfmask.report.plots import effects_picture

            return effects_picture(self)
        except ModuleNotFoundError:
            return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a row got its score: the average row's score, and what each column added.

    Attributes
    ----------
    score, average : float
        The row's score, and that of the average row.
    added : dict
        What each column added; with `average` it sums to `score`.
    outcome : str
        The class (or label) the score is of.
    """

    score: float
    average: float
    added: dict[str, float]
    outcome: str

    def __repr__(self) -> str:
        lines = [f"{self.score:+.3f}  score of {self.outcome}"]
        lines.append(f"{self.average:+.3f}  average row")
        ordered = sorted(self.added.items(), key=lambda each: -abs(each[1]))
        lines += [f"{value:+.3f}  {name}" for name, value in ordered]
        return "\n".join(lines)


def effects(
    model: Model, *, draws: int | None = None, told: Callable[[float, str], None] | None = None
) -> Effects:
    """The effects of a fitted model with their bars; `told` hears how far it is.

    `draws` is how many trainings on imagined rows bars are made from.

    Post-processing: it reads the model alone.
    """
    if model.method not in WITH_BARS:
        raise InputError(
            f"There are no effects with bars of a model by {model.method!r}: train with "
            f"{' or '.join(WITH_BARS)} and a schema. `explain` works for every linear model."
        )
    view = _View(model)
    if draws is None:
        draws = DRAWS if len(view.codings) <= _MANY_COLUMNS else FEWER_DRAWS
    # By names alone, so that an estimator whose effects were asked for can still be pickled.
    return Effects(partial(_found, view, draws, told))


def _found(view: _View, draws: int, told: Callable[[float, str], None] | None) -> list[Effect]:
    values = view.effects(view.model)
    low, high = _bars(view, values, draws, told)
    return [
        Effect(
            column=column.name,
            role=column.role,
            outcome=outcome,
            levels=view.names(place),
            values=_numbers(values[place][:, output]),
            low=_numbers(low[place][:, output]),
            high=_numbers(high[place][:, output]),
            share=None if (share := view.shares[place]) is None else _numbers(share),
            ordered=column.kind in ("number", "date"),
        )
        for place, column in enumerate(view.encoder.schema.columns)
        for output, outcome in enumerate(view.outcomes)
    ]


def explain(model: Model, row: Any) -> Explanation:
    """What each column of one row (a frame of one row, or a mapping) added to its score.

    A pair of columns that the model knows adds what its two levels mean together, beyond that.

    With more than two classes: to the score of the likeliest one.
    """
    if isinstance(row, dict):
        row = pa.table({name: [value] for name, value in row.items()})
    table = model.encode(row)
    if table.n != 1:
        raise InputError(f"Expected one row to explain, got {table.n}: pass frame[:1].")
    view = _View(model)
    scores = model.scores(table)
    output = int(scores[0].argmax()) if scores.shape[1] > 1 else 0
    values = view.effects(model)
    added = {
        column.name: view.at(place, table, values[place][:, output])
        for place, column in enumerate(view.encoder.schema.columns)
    } | view.together(table)
    score = float(scores[0, output])
    return Explanation(
        score=score,
        average=score - sum(added.values()),
        added=added,
        outcome=view.outcomes[output],
    )


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


class _View:
    """A model's columns as levels, and rows imagined from what it says of them."""

    def __init__(self, model: Model) -> None:
        if model.encoder is None or model.kind not in ("additive", "linear"):
            reason = "a network has none" if model.encoder is not None else "it knows no columns"
            advice = "use method 'additive'" if model.encoder is not None else "pass a schema"
            raise InputError(
                f"There are no effects by column of this model by {model.method!r}, since {reason}:"
                f" {advice} and train again."
            )
        self.model = model
        self.additive = model.kind == "additive"
        self.encoder = _plain_encoder(model.encoder)
        self.count = float(model.details.get("rows_counted", MOST_ROWS))
        self.fit: Any = vars(model)["fit"]
        self.rows = int(min(max(self.count, 2), MOST_ROWS))
        facts = model.details.get("levels") if self.additive else None
        columns = self.encoder.schema.columns
        self.facts: list[dict[str, Any]] = facts if facts is not None else [{} for _ in columns]
        self._grids = self.encoder.grids
        self.codings: list[Coding | Grid] = [self._coding(column.name) for column in columns]
        self.shares = [self._share(place) for place in range(len(columns))]
        self._by_free: dict[tuple[int, int], Floats] = {}

    def allowance(self, place: int) -> float:
        """By how much a column's bars are widened."""
        if not self.additive:
            return _UNCOUNTED
        schema = self.encoder.schema
        beside = bool(schema.public) and schema.columns[place].role == "private"
        usual = _BESIDE if beside else _ALLOWANCE
        return max(usual, _SEVERAL) if len(self.outcomes) > 1 else usual

    @property
    def slope_noise(self) -> float:
        """The noise in the slope by which effects were scaled at last, in parts of that slope."""
        slope = self.model.details.get("slope") if self.additive else None
        if not isinstance(slope, dict) or not slope.get("used"):
            return 0.0
        return float(min(slope["noise"] / max(slope["used"], 0.1), 2.0))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What scores are of: the second of two classes, each of more, or the label itself."""
        classes = self.model.classes
        if classes is None:
            return (self.encoder.schema.label.name,)
        named = classes[1:] if len(classes) == 2 else classes
        return tuple(str(name) for name in named)

    def _coding(self, name: str) -> Coding | Grid:
        if self.additive:
            assert self._grids is not None
            return self._grids[name]
        return self.encoder.cells(name).coding

    def _share(self, place: int) -> Floats | None:
        known = self.facts[place].get("share")
        if known is None:
            return None
        share = np.maximum(np.asarray(known, dtype=np.float64), 0.0)
        fits = len(share) == self.codings[place].width and share.sum() > 0
        return share / share.sum() if fits else None

    def names(self, place: int) -> tuple[str, ...]:
        """The names of a column's levels."""
        coding, column = self.codings[place], self.encoder.schema.columns[place]
        if isinstance(coding, Scaled):
            ends = np.linspace(coding.low, coding.high, _POINTS)
            return (*(f"{end:g}" for end in ends), "<missing>")
        return tuple(name.removeprefix(f"{column.name}=") for name in coding.names(column.name))

    # --- effects

    def effects(self, model: Model) -> list[Floats]:
        """Levels x outputs of each column, against the average imagined row."""
        places = range(len(self.codings))
        if self.additive:
            by_output = [self._added(fit) for fit in _outputs(vars(model)["fit"])]
            raw = [np.column_stack([each[place] for each in by_output]) for place in places]
        else:
            raw = [self._linear(model, place) for place in places]
        return [
            values - self._weights(place, len(values)) @ values for place, values in enumerate(raw)
        ]

    def _weights(self, place: int, levels: int) -> Floats:
        known = self.shares[place]
        if known is not None:
            return known
        share = np.full(levels, 1.0)
        coding = self.codings[place]
        rare = 2 if isinstance(coding, Levels) else 1
        if levels > rare:
            share[-rare:] = _MISSING * (levels - rare)
        even: Floats = share / share.sum()
        return even

    def _added(self, fit: AdditiveFit) -> list[Floats]:
        """What each level of each column adds to the mean score of a few imagined rows."""
        found = []
        rows = self._asked_rows.coded
        known = None if fit.free is not None else fit.offset(rows)
        for place, weights in enumerate(fit.weights):
            own = weights + self._by_pairs(fit.pairs, place)
            offsets = None
            if fit.free is not None and place in fit.free_columns:
                offsets = self._free_offsets(fit, fit.free_columns.index(place))
            elif known is not None and fit.offset_weights is not None:
                added = fit.offset_weights[place] + self._by_pairs(fit.offset_pairs, place)
                offsets = known - added[rows[place].codes] + added[:, None]
            if offsets is not None:
                own = own + fit.offset_scale * offsets.mean(axis=1)
                if len(fit.bend):
                    bent = fit.bend[np.searchsorted(fit.bend_edges, offsets, side="right")]
                    own = own + bent.mean(axis=1)
            found.append(own)
        return found

    def _free_offsets(self, fit: AdditiveFit, place: int) -> Floats:
        """The free model's offset of the rows, all set to each level in turn; found once, since
        no noise goes into it."""
        assert fit.free is not None
        found = self._by_free.get((id(fit.free), place))
        if found is None:
            columns = [self._asked_rows.coded[each] for each in fit.free_columns]
            codes = np.column_stack([column.codes for column in columns])
            levels = columns[place].levels
            every = np.tile(codes, (levels, 1))
            every[:, place] = np.repeat(np.arange(levels), len(codes))
            scores = fit.free.scores(every)
            scores = np.asarray(log_expit(scores)) if fit.log_chance else scores
            found = scores.reshape(levels, len(codes))
            self._by_free[id(fit.free), place] = found
        return found

    @cached_property
    def _asked_rows(self) -> CodedFeatures:
        return self.imagined.kept(np.arange(min(_ASKED, self.rows)))

    def _by_pairs(self, pairs: Sequence[PairWeights], place: int) -> Any:
        """What the column's levels add by pairs, averaged over the other column's levels."""
        found: Any = 0.0
        for pair in pairs:
            table = pair.by_level()
            if pair.first == place:
                found = found + table @ self._weights(pair.second, table.shape[1])
            elif pair.second == place:
                found = found + self._weights(pair.first, len(table)) @ table
        return found

    def together(self, table: Table) -> dict[str, float]:
        """What pairs of levels add to the only row of `table`, beyond their averages by column."""
        found: dict[str, float] = {}
        for pair in _outputs(self.fit)[0].all_pairs if self.additive else ():
            places = (pair.first, pair.second)
            levels = [int(table.coded[place].codes[0]) for place in places]
            weights = pair.by_level()
            first, second = (
                self._weights(p, n) for p, n in zip(places, weights.shape, strict=True)
            )
            alone = weights @ second, first @ weights
            mean = first @ alone[0]
            value = weights[levels[0], levels[1]] + mean - alone[0][levels[0]] - alone[1][levels[1]]
            names = [self.encoder.schema.columns[place].name for place in reversed(places)]
            both = " and ".join(names)
            found[both] = found.get(both, 0.0) + float(value)
        return found

    def _asked(self, model: Model, place: int) -> Floats:
        """The mean score of imagined rows, every row set to each level in turn."""
        rows = self._asked_rows
        levels = self.codings[place].width
        codes = np.repeat([self._code(place, level) for level in range(levels)], rows.n)
        every = rows.kept(np.tile(np.arange(rows.n), levels))
        columns = list(every.columns)
        columns[place] = replace(columns[place], codes=codes.astype(columns[place].codes.dtype))
        scores = model.scores(self.table(CodedFeatures(columns=tuple(columns), n=len(codes))))
        found: Floats = scores.reshape(levels, rows.n, -1).mean(axis=1)
        return found

    def _linear(self, model: Any, place: int) -> Floats:
        """Coefficients of the column's own features; public ones may have been mapped."""
        columns = self.encoder.schema.columns
        column = columns[place]
        if model.fit.feature_map is not None and column.role == "public":
            return self._asked(model, place)
        # Public features come first; those that were mapped are however many there are.
        order = sorted(range(len(columns)), key=lambda each: columns[each].role == "private")
        behind = sum(self.codings[each].width for each in order[order.index(place) :])
        start = model.fit.coef.shape[1] - behind
        own: Floats = model.fit.coef[:, start : start + self.codings[place].width].T
        return self._own(own, self.codings[place])

    @staticmethod
    def _own(weights: Floats, coding: Coding | Grid) -> Floats:
        if isinstance(coding, Scaled):
            line = np.linspace(-1, 1, _POINTS)[:, None] * weights[0]
            weights = np.vstack([line, weights[1]])
        return weights

    def at(self, place: int, table: Table, values: Floats) -> float:
        """What the column of the only row of `table` adds, by its level."""
        assert isinstance(table.features, CodedFeatures)
        kept = table.features.columns[place]
        coding = self.codings[place]
        if isinstance(coding, Scaled):
            if kept.codes[0] == kept.cells.count - 1:
                return float(values[-1])
            assert kept.numbers is not None
            line = np.linspace(-1, 1, _POINTS)
            return float(np.interp(kept.numbers[0], line, values[:-1]))
        if self.additive:
            return float(values[int(kept.coded().codes[0])])
        assert kept.cells.places is not None
        return float(values[int(kept.cells.places[kept.codes[0]])])

    # --- imagined rows

    def _code(self, place: int, level: int) -> int:
        """A cell's code that has this level."""
        cells = self.encoder.cells(self.encoder.schema.columns[place].name)
        meaning = cells.level_of if self.additive else cells.places
        if meaning is None:
            return min(level, cells.count - 1)
        return int(np.flatnonzero(meaning == level)[0])

    @cached_property
    def imagined(self) -> CodedFeatures:
        """Rows with the shares that are known, columns loosely following one another.

        Of a cell's order that of effects is taken, so that columns which tell the same go together.
        """
        generator = np.random.default_rng(0)
        common = generator.standard_normal(self.rows)
        columns = []
        for place, column in enumerate(self.encoder.schema.columns):
            cells = self.encoder.cells(column.name)
            own = generator.standard_normal(self.rows)
            near = math.sqrt(_CORRELATED) * common + math.sqrt(1 - _CORRELATED) * own
            numbers = None
            if cells.scaled is not None and not self.additive:
                numbers = 2 * ndtr(near) - 1
                gone = generator.random(self.rows) < _MISSING
                values = cells.scaled.unscaled(np.where(gone, np.nan, numbers))
                codes = cells.of_values(values)
                numbers = np.where(gone, 0.0, numbers)
            else:
                levels = self.codings[place].width
                share = self._weights(place, levels)
                order = self._order(place)
                ends = np.cumsum(share[order])
                drawn = order[np.minimum(np.searchsorted(ends, ndtr(near)), levels - 1)]
                by_level = np.array([self._code(place, level) for level in range(levels)])
                codes = by_level[drawn].astype(cells.dtype)
                if cells.scaled is not None:
                    numbers = np.zeros(self.rows)
            kept = KeptColumn(
                name=column.name,
                private=column.role == "private",
                cells=cells,
                codes=codes,
                numbers=numbers,
            )
            columns.append(kept)
        return CodedFeatures(columns=tuple(columns), n=self.rows)

    def _order(self, place: int) -> NDArray[np.intp]:
        if self.additive:
            weights, offset = np.asarray(self.fit.weights[place]), self.fit.offset_weights
            if offset is not None:
                weights = weights + np.asarray(offset[place])
            if weights.ndim == 1:
                return np.argsort(weights, kind="stable")
        return np.arange(self.codings[place].width)

    def table(self, features: CodedFeatures, label: NDArray[Any] | None = None) -> Table:
        """Imagined rows as a table."""
        given = np.zeros(features.n, dtype=np.int64) if label is None else label
        return replace(self._blank, features=features, label=given, rows=np.arange(features.n))

    @cached_property
    def _blank(self) -> Table:
        """A row of missing cells."""
        schema = self.encoder.schema
        blank = {name: pa.array([None], pa.string()) for name in schema.read}
        first = schema.label.classes[0] if schema.label.classes else 0
        blank[schema.label.name] = pa.array([str(first)])
        return self.encoder.encode(pa.table(blank))

    @cached_property
    def labelled(self) -> Table:
        """Imagined rows with labels as the model expects them."""
        generator = np.random.default_rng(1)
        table = self.table(self.imagined)
        scores = self.model.scores(table)
        if self.model.classes is None:
            assert self.model.label_bounds is not None
            low, high = self.model.label_bounds
            error = self.model.details.get("covered", {}).get("rmse") or (high - low) / 6
            drawn = scores[:, 0] + error * generator.standard_normal(len(scores))
            return replace(table, label=np.clip(drawn, low, high))
        if scores.shape[1] == 1:
            chance = expit(scores[:, 0])
            return replace(table, label=(generator.random(len(chance)) < chance).astype(np.int64))
        ends = np.cumsum(softmax(scores, axis=1), axis=1)
        drawn = (generator.random(len(ends))[:, None] > ends).sum(axis=1)
        return replace(table, label=np.minimum(drawn, scores.shape[1] - 1))


def _outputs(fit: Any) -> tuple[AdditiveFit, ...]:
    """One for each score: one, or one for each of several classes."""
    return cast("tuple[AdditiveFit, ...]", getattr(fit, "outputs", (fit,)))


def _plain_encoder(encoder: Encoder) -> Encoder:
    """The encoder for one row per person, all with a label."""
    data = encoder.to_json()
    data["schema"].pop("unit", None)
    data["schema"]["label"].pop("missing", None)
    return Encoder.from_json(data)


def _bars(
    view: _View, values: list[Floats], draws: int, told: Callable[[float, str], None] | None
) -> tuple[list[Floats], list[Floats]]:
    """Ends of the bars: around each effect, as far as trainings on imagined rows lie apart."""
    drawn: list[list[Floats]] = [[] for _ in values]
    for place, model in enumerate(_trained(view, draws)):
        for column, effect in enumerate(view.effects(model)):
            drawn[column].append(effect)
        if told is not None:
            told((place + 1) / draws, f"{place + 1} of {draws} trainings on imagined rows")
    wide = float(student.ppf(0.975, max(draws - 1, 1)))
    spreads = [np.std(each, axis=0, ddof=1) for each in drawn]
    # A column that this draw of noise has shrunk to nothing is as uncertain as its neighbours.
    hidden = [
        s for s, c in zip(spreads, view.encoder.schema.columns, strict=True) if c.role == "private"
    ]
    # Of several classes nothing else says what noise leaves open: see `known` below.
    part = 0.5 if len(view.outcomes) == 1 else 1.0
    least = part * float(np.mean(np.concatenate(hidden))) if hidden and view.additive else 0.0
    low, high = [], []
    for place, value in enumerate(values):
        spread = spreads[place]
        private = view.encoder.schema.columns[place].role == "private"
        if private and value.any():
            spread = np.maximum(spread, least)
        # What is held against a simpler model is known as far as its slope is.
        spread = np.hypot(spread, view.slope_noise * np.abs(value))
        known = view.facts[place].get("noise")
        if known is None or len(known) != len(value):
            known = np.zeros(len(value))
        known = np.asarray(known, dtype=np.float64)[:, None]
        if not private:
            # Worked out from the public columns as they are.
            spread = np.maximum(spread, known)
        bar = wide * view.allowance(place) * spread
        if private:
            # What rows and noise leave open, whatever this draw of noise has shrunk.
            bar = np.maximum(bar, _NORMAL * known)
        low.append(value - bar)
        high.append(value + bar)
    return low, high


def _trained(view: _View, draws: int) -> Iterator[Model]:
    """Models of the imagined rows, with fresh noise of the strength the data's rows had.

    A free model of the public columns is taken as it is: no noise goes into it.
    """
    from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
    from halfmask.accounting.ledger import MemoryLedger
    from halfmask.additive_model import AdditiveConfig, fit_additive
    from halfmask.data.products import fixed_order
    from halfmask.mechanisms.noise import noise_source
    from halfmask.mechanisms.release import Releaser
    from halfmask.training import train

    model, privacy = view.model, view.model.privacy
    epsilon = privacy.calibrated_epsilon
    if view.rows < view.count and math.isfinite(epsilon):
        mu = gaussian_mu(epsilon, privacy.delta) * view.count / view.rows
        epsilon = gaussian_epsilon(mu, privacy.delta)
    budget = Budget(epsilon=epsilon, delta=privacy.delta, relation=privacy.relation)
    trained: Model
    for draw in range(draws):
        noise = noise_source(draw)
        with part_of("noise bars of effects"):
            if view.additive:
                releaser = Releaser(MemoryLedger.of(budget), noise, whole_plan=True)
                free = tuple(fit.free for fit in _outputs(view.fit) if fit.free is not None)
                with fixed_order(len(view.codings)):
                    fit = fit_additive(view.labelled, releaser, AdditiveConfig(free_models=free))
                trained = replace(cast(Any, model), fit=fit)
            else:
                trained = train(
                    view.labelled,
                    budget,
                    method=model.method,
                    noise=noise,
                    encoder=view.encoder,
                    options=model.options,
                )
        yield trained
