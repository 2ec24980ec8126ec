"""`additive`: what public columns tell is taken in full, what private columns add is paid for.

A score is a sum of one number per column and level. With a public label a free model of the public
columns comes first, out of fold; with a private one a single release fits them. Then private
columns: noisy counts of their levels, one noisy gradient that tells what each column is worth, a
noisy descent, pairs of columns where noise lets them be heard, and a last release by which the
result is held against the base rate or the free model and shrunk towards it as far as noise may
have made it. The plan (shares of μ², steps) follows from public facts and is fixed before the first
release. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit, ndtri

from halfmask.accounting.events import Relation
from halfmask.data.products import BLOCK, CodeSums
from halfmask.data.units import unit_weights
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import ALONE, Shards, own_place, total_of
from halfmask.methods.additive_descent import (
    NODE_SHARES,
    NODES,
    Descent,
    PrivatePart,
    Stage,
    bounded_weight,
    levelled,
    score_nodes,
)
from halfmask.methods.additive_pairs import RELEASES, PairSearch, PairsPart, PairWeights, pair_count
from halfmask.methods.covered import PublicAlone, covered_classes, covered_numbers
from halfmask.methods.free_model import (
    FreeModel,
    PublicModel,
    cross_fitted,
    cross_fitted_public,
    level_values,
)
from halfmask.methods.public_sums import fit_public_sums
from halfmask.methods.smooth_codes import (
    LevelFeatures,
    described_levels,
    level_features,
    share_by_level,
)
from halfmask.table import CodedColumn, Table, Task
from halfmask.types import Floats

STEPS = 40
# Numbers are cut at so many spreads from what is predicted; further, up to _FARTHEST, where tails
# beyond hold more than this part of the variance (a normal number's hold as much), and as far as
# μ·rows is this many times the number of columns for each spread. Errors in the comparison, where
# noise matters less than bias, are cut so many times as far.
_CUT, _FARTHEST, _TAILS, _FOR_TAILS = 1.2, 3.0, 0.365, 170.0
_ERROR = 1.6
_FOLDS = 5
# What the comparison's sums get: errors, errors by score, scores, their squares, four curvatures.
_COMPARISON = np.array([0.10, 0.70, 0.03, 0.06, 0.02, 0.03, 0.02, 0.04])
# How far curvatures may be from those of a normal score.
_NORMAL = 0.2
_STEEPEST = 1.5
# A slope counts in full that is known to this; or that lies so many times its blur from zero, in
# part from the first number on.
_BLURRED = 0.5
_FAR = (2.0, 3.5)
# How far the mean of a score may lie from where noisy counts put it, in parts of its spread.
_OFF_CENTRE = 0.3
# How far labels of rows of large units may lie from those of others: classes, and numbers in parts
# of half their range.
_SKEW, _SKEW_OF_NUMBERS = 0.3, 0.05
# By how much a released base rate, or a free model, may typically be off.
_SHIFT = 0.15
# By which part of it an intercept that makes chances of a normal score right may be off.
_NOT_NORMAL = 0.3
# By how much of a spread errors that are cut may typically move the mean of a number.
_OFF_BY_CUT = 0.1
# A window that holds a smaller part of the rows than this grows until it does.
_MOST_ROWS = 0.7
# The window of a number's mean is widened until the mean's noise is this part of a spread.
_MEAN_NOISE = 0.1
# So many standard deviations of its noise a tail of the label's histogram, or a part, stands out.
_CLEAR_TAIL, _CLEAR_PART = 2.5, 3.0
# Pairs are looked for where μ·rows over the root of their number is at least this, and they are no
# more than so many; then finding them and learning them get these parts of what remains.
_PAIRS_FROM, _MOST_PAIRS = 6000.0, 2000
_FINDING, _PAIRS = 0.06, 0.14
# Releases of public sums, and the μ²·rows per public column from which one is enough: noise is then
# a tenth of what sampling leaves in some ten directions a column. From so much μ·rows on there is
# one more, and the second half of them may have products of columns.
LOOKS, _QUIET, _PRODUCTS_FROM = 3, 500, 600.0


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """Part of a plan: what it releases, how often, and its share of μ²."""

    name: str
    what: str
    share: float
    releases: int = 1


@dataclass(frozen=True, kw_only=True)
class AdditivePlan:
    """Shares of μ², each a stage; zero where a table has no use for it. Public facts decide."""

    base: float = 0.0
    spread: float = 0.0
    public: float = 0.0
    counts: float = 0.0
    worth: float = 0.0
    descent: float = 0.0
    pairs: float = 0.0
    pair_descent: float = 0.0
    comparison: float = 0.0
    covered: float = 0.0
    steps: int = STEPS
    looks: int = 1
    pair_looks: int = 0

    @classmethod
    def of(
        cls,
        *,
        rows: float,
        private_columns: int,
        public_columns: int,
        label_private: bool,
        number: bool,
        mu: float,
        several: bool = False,
    ) -> AdditivePlan:
        """The plan for a table of `rows` rows under `mu`.

        The base rate alone costs a model (1/(μ·rows))² over its share, in parts of what can be
        explained: its share keeps that below about 0.001, and 0.003 where a class is rare. Where
        (μ·rows)² is below 20,000 (40,000 for a number, whose range has to be found first), noise is
        louder than anything columns could add, and the base rate is all that is released. The
        comparison's share makes the slope of the score known to about a quarter. Public sums are
        released several times where noise is louder than sampling: the first finds which columns
        tell, the next ones listen to those. Pairs of columns are for two classes and numbers
        (`several` classes have none), and only where the noise in a gradient by all pairs is small
        beside what a weak one of them moves it by.
        """
        strength = (mu * rows) ** 2
        base = min(max(16_000 / strength, 0.02), 0.25) if label_private else 0.0
        if label_private and strength < (40_000 if number else 20_000):
            spread = 0.2 if number else 0.0
            return cls(base=1 - spread, spread=spread, steps=0)
        comparison = min(max(45_000 / strength, 0.03), 0.2)
        spread = 0.05 if number and label_private else 0.0
        covered = 0.02
        rest = 1 - base - comparison - spread - covered
        count = pair_count(private_columns, public_columns, label_private=label_private)
        heard = 0 < count <= _MOST_PAIRS and mu * rows >= _PAIRS_FROM * math.sqrt(count)
        pairs, pair_descent = (0.0, 0.0)
        if heard and not several:
            pairs, pair_descent = _FINDING * rest, _PAIRS * rest
            rest = rest - pairs - pair_descent
        quiet = mu**2 * rows >= _QUIET * public_columns
        products = label_private and public_columns > 1 and not several
        products = products and mu * rows >= _PRODUCTS_FROM
        looks = (1 if quiet else LOOKS) + products
        public = 0.0
        if label_private and public_columns:
            share = public_columns / (public_columns + private_columns)
            public = rest * (min(max(share, 0.15), 0.6) if private_columns else 1.0)
        rest = rest - public if private_columns else 0.0
        return cls(
            looks=looks,
            pair_looks=looks // 2 if products else 0,
            base=base,
            spread=spread,
            public=public,
            counts=0.06 * rest,
            worth=0.12 * rest,
            descent=0.82 * rest,
            pairs=pairs,
            pair_descent=pair_descent,
            comparison=comparison,
            covered=covered,
        )

    def stages(self, *, private_columns: int, number: bool) -> tuple[PlannedStage, ...]:
        """What is released, in order; these and no others are opened by a fit."""
        covered = "squared errors" if number else "losses and a histogram of scores by label"
        label = "the mean of the label" if number else "the number of rows of each class"
        columns = (
            "one private column" if private_columns == 1 else f"{private_columns} private columns"
        )
        last = f"the last {self.pair_looks}" if self.pair_looks > 1 else "the last"
        products = f" (in {last} of their products too)" if self.pair_looks else ""
        whats = {
            "spread": "a histogram of the label",
            "base": label,
            "public": f"sums of public features{products} by label",
            "counts": f"counts of the levels of {columns}",
            "worth": "a gradient by all private columns",
            "descent": "noisy gradients by all private columns",
            "pairs": "a gradient by all pairs of columns",
            "pair_descent": "counts and noisy gradients of a few pairs of columns",
            "comparison": "a comparison with a simpler model",
            "covered": covered,
        }
        releases = {"public": self.looks, "descent": self.steps, "pair_descent": RELEASES}
        return tuple(
            PlannedStage(
                name=name,
                what=what,
                share=getattr(self, name),
                releases=releases.get(name, 1),
            )
            for name, what in whats.items()
            if getattr(self, name) > 0
        )


def plan_in_words(stages: Sequence[PlannedStage]) -> str:
    """The plan as a statement notes it."""
    parts = [
        f"{each.what} {100 * each.share:.3g}%"
        + (f" ({each.releases} releases)" if each.releases > 1 else "")
        for each in stages
    ]
    return (
        "The plan followed from public facts and was fixed before the first release. Shares of the "
        f"squared budget: {'; '.join(parts)}."
    )


def row_weights(
    table: Table,
    relation: Relation,
    mu: float,
    given: Floats | None = None,
    shards: Shards = ALONE,
    *,
    numbers: int | None = None,
    skew: float = 0.0,
) -> tuple[Floats, float, float]:
    """Public weights in [0, 1], by which a unit counts as at most so many rows; that number; total.

    Rows per unit and the weights `given` are public; the largest of these counts as 1. `numbers`
    are as many as a stage releases, `skew` as in `unit_weights`.
    """
    weights, most = np.ones(table.n), 1.0
    if table.unit is not None:
        numbers = 16 * len(table.coded) if numbers is None else numbers
        found = unit_weights(table.unit, numbers=numbers, mu=mu, relation=relation, skew=skew)
        weights, most = found.rows, float(found.most)
    if given is not None:
        weights = weights * (given / given.max())
    return weights, most, total_of(weights, shards)


def _notes(table: Table, public_model: Any, given: Floats | None) -> Iterator[str]:
    """What a statement has to add about public labels, models and weights."""
    if public_model is not None:
        yield (
            f"The free model is the user's own ({type(public_model).__name__}): it was handed "
            "public columns and the public label alone. That its own settings hold nothing private "
            "is the user's word."
        )
    if not table.label_private and not all(column.private for column in table.coded):
        yield "The free model may reproduce public columns and labels: they are not protected."
    if given is not None:
        yield "Rows were weighed by numbers that were given as public."


@dataclass(frozen=True, kw_only=True, eq=False)
class AdditiveFit:
    """score = intercept + offset_scale · offset + Σ weights[column][level] + bend(offset) + pairs.

    The offset is a free model's score, or offset_start + Σ offset_weights[column][level] +
    offset_pairs; pairs are looked up by two levels.
    """

    weights: tuple[Floats, ...]
    intercept: float
    offset_weights: tuple[Floats, ...] | None = None
    offset_start: float = 0.0
    offset_scale: float = 0.0
    free: FreeModel | PublicModel | None = None
    free_columns: tuple[int, ...] = ()
    log_chance: bool = False  # the offset is the log of the free model's chance, not its score
    bend_edges: Floats = field(default_factory=lambda: np.zeros(0))
    bend: Floats = field(default_factory=lambda: np.zeros(0))
    offset_pairs: tuple[PairWeights, ...] = ()
    pairs: tuple[PairWeights, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scores(self, columns: Sequence[CodedColumn]) -> Floats:
        """The score of each row."""
        found = CodeSums(columns).scores(self.weights) + self.intercept
        for pair in self.pairs:
            found += pair.scores(columns)
        offset = self.offset(columns)
        if offset is not None:
            found = found + self.offset_scale * offset
            if len(self.bend):
                found = found + self.bend[np.searchsorted(self.bend_edges, offset, side="right")]
        return found

    @property
    def all_pairs(self) -> tuple[PairWeights, ...]:
        """All pairs of columns, as they count in the score (but for the bend of the offset)."""
        return (*self.pairs, *(pair.scaled(self.offset_scale) for pair in self.offset_pairs))

    def offset(self, columns: Sequence[CodedColumn]) -> Floats | None:
        """What public columns alone tell of each row; None where they have no part of their own."""
        if self.free is not None:
            scores = self.free.scores(_stacked(columns, self.free_columns))
            return np.asarray(log_expit(scores)) if self.log_chance else scores
        if self.offset_weights is not None:
            found = CodeSums(columns).scores(self.offset_weights) + self.offset_start
            for pair in self.offset_pairs:
                found += pair.scores(columns)
            return found
        return None


def _stacked(columns: Sequence[CodedColumn], places: Sequence[int]) -> NDArray[np.integer[Any]]:
    return np.column_stack([columns[place].codes for place in places])


def kept_of(scale: float, noise: float) -> float:
    """The part of a noisy number that is kept, where it is typically as large as `scale`."""
    return scale**2 / (scale**2 + noise**2)


def believed_slope(slope: float, blur: float) -> float:
    """What is used of a slope that is known to ± `blur`: noise that could have made it comes off.

    One that is hardly known counts little, however steep it seems, unless noise is most unlikely to
    have made it: a descent that was shrunk too much has short scores and a steep, blurred slope.
    """
    if slope <= blur:
        return 0.0
    known = (_BLURRED / max(blur, _BLURRED)) ** 2
    clear = min(max((slope / max(blur, 1e-300) - _FAR[0]) / (_FAR[1] - _FAR[0]), 0.0), 1.0)
    return min(slope - blur**2 / slope, _STEEPEST) * max(known, clear)


def _counted(codes: NDArray[np.integer[Any]], weights: Floats, levels: int) -> Floats:
    return np.asarray(np.bincount(codes, weights, levels), dtype=np.float64)


def tail_cut(values: Floats, shares: Floats, most: float) -> float:
    """Where to cut `values` about their mean, at most `most`: see _TAILS."""
    squares = (values - shares @ values) ** 2
    low, high = _CUT, max(most, _CUT)
    for _ in range(20):
        middle = (low + high) / 2
        beyond = shares @ np.maximum(squares - middle**2, 0.0) > _TAILS * (shares @ squares)
        low, high = (middle, high) if beyond else (low, middle)
    return high


def _seen(noisy: Floats, noise: float) -> tuple[int, int]:
    """The first and the last part of a histogram beyond which its counts may all be noise.

    A part, or the whole tail that it begins, has to stand out: one far away that does so by chance
    would make the mean pay for the whole range.
    """

    def beyond(counts: Floats) -> int:
        tails = np.cumsum(counts) / np.sqrt(np.arange(1, len(counts) + 1))
        return int(np.argmax((tails > _CLEAR_TAIL * noise) | (counts > _CLEAR_PART * noise)))

    return beyond(noisy), len(noisy) - 1 - beyond(noisy[::-1])


def _grown(noisy: Floats, first: int, last: int, enough: float) -> tuple[int, int]:
    """These parts of a histogram, and neighbours of them until they hold enough rows.

    First the side on which more is seen: parts that are hardly above the noise hold many rows
    together, and the whole range would make the mean pay for far more.
    """
    while noisy[first : last + 1].sum() < enough and last - first < len(noisy) - 1:
        before = noisy[first - 1] if first > 0 else -math.inf
        behind = noisy[last + 1] if last < len(noisy) - 1 else -math.inf
        first, last = (first - 1, last) if before > behind else (first, last + 1)
    return first, last


def comparison_moves(
    short: float, long: float, *, number: bool, cut: float = _CUT
) -> tuple[Floats, tuple[float, float]]:
    """Units of the comparison's sums, and how far a row moves them in these (replace, withhold).

    A unit is the largest change of a sum over the root of its share; the shares add up to 1. A
    withheld row moves a sum of both signs by half of its unit.
    """
    longest, most = (_ERROR * cut, 1.0) if number else (0.5, 0.25)
    units = np.array([2 * longest, 2 * longest * short, 2 * long, long**2])
    units = np.append(units, most * np.array([1, 2 * short, 2 * long, short * long]))
    halves = np.array([0.5, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 1.0])
    return units / np.sqrt(_COMPARISON), (1.0, math.sqrt(float(_COMPARISON @ halves**2)))


# Parts of [-1, 1] in which a number is counted: sixteenths, the first and last halved again and
# again, since values crowd at declared ends.
_HALVES = 0.125 * 0.5 ** np.arange(1, 6)
LABEL_EDGES = np.unique(np.concatenate([np.linspace(-1, 1, 17), _HALVES - 1, 1 - _HALVES]))


class AdditiveRun:
    """One run. Every attribute is public or released, but for codes, targets and scores of rows."""

    def __init__(
        self,
        table: Table,
        releaser: Releaser,
        mu: float,
        public_model: Any = None,
        sample_weight: Floats | None = None,
    ) -> None:
        self._public_model, self._groups = public_model, table.unit
        self.free_models: list[FreeModel | PublicModel] = []
        self._shards, self._here = releaser.shards, own_place(table.n, releaser.shards)
        self._columns = table.coded
        self._private = [p for p, c in enumerate(table.coded) if c.private]
        self._public = [p for p, c in enumerate(table.coded) if not c.private]
        self._number = table.classes is None
        self._label_private = table.label_private
        self._mu = mu
        self._noise: dict[int, Floats] = {}
        self._cut = _CUT
        self._base_doubt = 0.0
        self._shares: dict[int, Floats] = {}
        self._features: dict[int, LevelFeatures] = {}
        self._set_target(table)
        self._weights, self._most, self._n = row_weights(
            table, releaser.relation, mu, sample_weight, releaser.shards
        )
        self.plan = AdditivePlan.of(
            rows=self._n / self._most,
            private_columns=len(self._private),
            public_columns=len(self._public),
            label_private=table.label_private,
            number=self._number,
            mu=mu,
            several=len(table.classes or ()) > 2,
        )
        # Base rates, the comparison and covered scores count rows as they are, as far as noise
        # allows: rows of large units often have other labels, and a model is to be right, and is
        # judged, on average of rows.
        self._even, self._even_most, self._even_n = row_weights(
            table,
            releaser.relation,
            mu * math.sqrt(self.plan.base + self.plan.comparison),
            sample_weight,
            releaser.shards,
            numbers=len(_COMPARISON),
            skew=_SKEW_OF_NUMBERS if self._number else _SKEW,
        )
        # Under a private label the rest was learnt by other weights, and may be off by more.
        more = 1 - self._n / self._even_n if table.label_private else 0.0
        self._off = math.hypot(_SHIFT, more)
        self._given = np.ones(table.n)
        if sample_weight is not None:
            self._given = sample_weight / sample_weight.max()
        stages = self.plan.stages(private_columns=len(self._private), number=self._number)
        self._open(releaser, stages)
        self._notes = (plan_in_words(stages), *_notes(table, public_model, sample_weight))
        self.details: dict[str, Any] = {
            "plan": asdict(self.plan),
            "stages": [asdict(each) for each in stages],
            "rows_counted": self._n / self._most,
        }
        if self._even_n < total_of(self._given, releaser.shards):
            self.details["weighed_rows"] = True  # in covered scores and the base rate

    def _set_target(self, table: Table) -> None:
        """0/1, or a number as [-1, 1]; `labelled` is 0 where a private label is missing."""
        skipped = table.skipped
        assert table.label is not None
        self._labelled = ~skipped
        self._may_lack = table.schema is not None and table.schema.label.missing == "skip"
        if self._number:
            assert table.label_bounds is not None
            low, high = table.label_bounds
            self._middle, self._half = (high + low) / 2, (high - low) / 2
            target = np.clip((table.label - self._middle) / self._half, -1, 1)
            self._target = np.where(skipped, 0.0, target)
        else:
            self._middle, self._half = 0.0, 1.0
            self._target = np.where(skipped, 0.0, table.label.astype(np.float64))

    def _open(self, releaser: Releaser, stages: Sequence[PlannedStage]) -> None:
        """All releases, opened before the first one: they are charged together."""
        most = dict.fromkeys(("base", "comparison", "covered"), self._even_most)
        opened = {
            each.name: Stage(
                releaser,
                self._mu,
                each.share,
                each.releases,
                most.get(each.name, self._most),
                each.what,
            )
            for each in stages
        }
        self._base_stage = opened.get("base")
        self._spread_stage = opened.get("spread")
        self._public_stage = opened.get("public")
        self._counts_stage = opened.get("counts")
        self._worth_stage = opened.get("worth")
        self._descent_stage = opened.get("descent")
        self._pairs_stage = opened.get("pairs")
        self._pair_descent_stage = opened.get("pair_descent")
        self._comparison_stage = opened.get("comparison")
        self._covered_stage = opened.get("covered")

    # --- the stages in order

    def run(self) -> AdditiveFit:
        """All stages; what is returned follows from releases and public values."""
        if not self._label_private:
            return self._beside_free_model()
        window, unit = self._label_window()
        base = self._base_rate(window)
        if self.plan.steps == 0:
            self.details["base_rate_only"] = True
            return self._fit(base, intercept=base)
        offset = np.full(len(self._target), base)
        offset_weights: list[Floats] | None = None
        offset_start, offset_pairs = base, list[PairWeights]()
        if self._public:
            offset_weights, offset_start, offset_pairs = self._from_public(base, unit)
            offset = CodeSums(self._columns).scores(offset_weights) + offset_start
            for pair in offset_pairs:
                offset += pair.scores(self._columns)
        # What public columns tell is public: its spread and quantiles are those of all machines.
        known = self._shards.gather(offset) if self._public else None
        # Later releases tell of the base rate too: scores are held against what all of them say.
        middle = base
        if known is not None:
            rate = np.clip(expit(known).mean(), 1e-4, 1 - 1e-4)
            middle = float(known.mean() if self._number else logit(rate))
        scores, spread = offset, 0.0 if known is None else float(np.std(known))
        # Where the mean of the score lies from its middle.
        mean = 0.0 if known is None or self._number else float(known.mean()) - middle
        weights = [np.zeros(column.levels) for column in self._columns]
        added, bend_edges, bend = 0.0, np.zeros(0), np.zeros(0)
        if self._private:
            stage, bend_edges = self._stage_columns(offset if self._public else None, known)
            part = self._descend(stage, offset, unit, base, known)
            placed = [unit * table for table in part.by_level()]
            scores = offset + CodeSums(stage).scores(placed) + unit * part.intercept
            added = unit * part.intercept
            if not self._public:
                # The descent's intercept holds the base rate already.
                shift = 0.0 if self._number else base
                scores, added = scores - shift, added - shift
            for place, weight in zip(self._private, placed, strict=False):
                weights[place] = weight
            bend = placed[len(self._private)][:-1] if len(stage) > len(self._private) else bend
            spread = math.hypot(spread, unit * part.spread)
            if not self._number:
                lies = part.mean - (0.0 if self._public else base)
                level = self._level(base if known is None else known, lies, part)
                scores, added, mean = scores + level, added + level, mean + lies + level
        paired = self._paired(scores, base, unit, spread)
        if paired.pairs:
            scores = scores + unit * paired.scores(self._columns)
            added += unit * paired.intercept
            spread = math.hypot(spread, unit * paired.spread)
        own = math.sqrt(max(spread**2 - (0.0 if known is None else float(np.var(known))), 0.0))
        if self._groups is not None:
            # Sums were of weighed rows; the base rate is one of rows as they are.
            scores, offset_start = scores + base - middle, offset_start + base - middle
            offset = offset + base - middle
            middle = base
        shift, slope = self._compared(
            middle, scores - middle, unit, (mean, spread, own), base - middle
        )
        alone = offset if self._public and self._private else None
        self._cover(middle + shift + slope * (scores - middle), base, unit, slope * spread, alone)
        start = added if offset_weights is not None else base + added
        return self._fit(
            base,
            intercept=middle + shift + slope * (start - middle),
            weights=[slope * weight for weight in weights],
            offset_weights=offset_weights,
            offset_start=offset_start,
            offset_scale=slope if offset_weights is not None else 0.0,
            bend_edges=bend_edges,
            bend=slope * bend,
            pairs=[pair.scaled(slope * unit) for pair in paired.pairs],
            offset_pairs=offset_pairs,
        )

    def _beside_free_model(self) -> AdditiveFit:
        """Label public: a free model of the public columns, and what private ones add to it."""
        free, places = None, tuple(self._public)
        everyone, counted = (self._shards.gather(each) for each in (self._target, self._given))
        base = float(np.average(everyone, weights=counted))
        if self._number:
            variance = float(np.average((everyone - base) ** 2, weights=counted))
            self.details["spread"] = self._half * math.sqrt(variance)
        else:
            base = float(logit(np.clip(base, 1e-3, 1 - 1e-3)))
        known = np.full(len(everyone), base)
        if places:
            known, free = self._free_model(places, everyone, counted)
            self.details["free_score"] = self._free_score(known, everyone, counted)
        unit = float(np.std(everyone - known)) if self._number else 1.0
        unit = max(unit, 1e-3) if self._number else 1.0
        if self._number:
            left = (everyone - known) / unit
            self._cut = tail_cut(left, counted / counted.sum(), self._farthest())
        offset = known[self._here]
        stage, bend_edges = self._stage_columns(offset if places else None, known)
        tilt = self._tilt(everyone, known)
        part = self._descend(stage, offset + tilt, unit, base, known + tilt)
        placed = [unit * table for table in part.by_level()]
        extra = CodeSums(stage).scores(placed) + unit * part.intercept
        added, own, middle, mean = part.intercept, part.spread, float(np.mean(known)), 0.0
        if not self._number:
            level = self._level(known, part.mean, part)
            extra, added, mean = extra + level, added + level, part.mean + level
        paired = self._paired(offset + extra, middle, unit, math.hypot(float(np.std(known)), own))
        if paired.pairs:
            extra = extra + unit * paired.scores(self._columns)
            added, own = added + paired.intercept, math.hypot(own, paired.spread)
        missed = float(np.average(everyone - known, weights=counted)) if self._number else 0.0
        spreads = (mean, unit * own, unit * own)
        shift, slope = self._compared(offset, extra, unit, spreads, missed)
        spread = math.hypot(float(np.std(known)), own)
        self._cover(offset + shift + slope * extra, base, unit, spread)
        weights = [np.zeros(column.levels) for column in self._columns]
        for place, weight in zip(self._private, placed, strict=False):
            weights[place] = slope * weight
        bend = slope * placed[-1][:-1] if len(stage) > len(self._private) else np.zeros(0)
        return self._fit(
            base,
            intercept=shift + slope * unit * added + (0.0 if places else base),
            weights=weights,
            free=free,
            free_columns=places,
            offset_scale=1.0 if places else 0.0,
            bend_edges=bend_edges,
            bend=bend,
            pairs=[pair.scaled(slope * unit) for pair in paired.pairs],
        )

    def _tilt(self, everyone: Floats, known: Floats) -> float:
        """What makes a free model right on average of weighed rows, where rows are not alike."""
        if self._groups is None:
            return 0.0
        weights = self._shards.gather(self._weights)
        told = known if self._number else expit(known)
        bend = weights if self._number else weights * told * (1 - told)
        return float(weights @ (everyone - told) / max(bend.sum(), 1e-9))

    def _free_score(self, known: Floats, label: Floats, weights: Floats) -> dict[str, float]:
        """How well public columns alone tell a public label, on rows that they did not see."""
        if self._number:
            missed = self._half * math.sqrt(np.average((label - known) ** 2, weights=weights))
            return {"rmse": float(missed)}
        loss = np.logaddexp(0.0, known) - label * known
        return {"log_loss": float(np.average(loss, weights=weights))}

    def _free_model(
        self, places: Sequence[int], target: Floats, weights: Floats, outputs: int = 1
    ) -> tuple[Floats, FreeModel | PublicModel]:
        """Scores out of fold and the model of all rows; public columns and labels go in alone."""
        codes, columns = _stacked(self._columns, places), [self._columns[p] for p in places]
        if self._shards.count > 1:
            codes = self._shards.gather(codes.astype(np.float64)).astype(codes.dtype)
        if len(self.free_models) >= outputs:
            free = self.free_models[0]
            self.free_models = [*self.free_models[1:], free]
            return free.scores(codes), free
        task: Task = "regression" if self._number else "classification"
        if self._public_model is not None:
            even = bool((weights == weights[0]).all())
            return cross_fitted_public(
                self._public_model,
                codes,
                target,
                values=[level_values(column) for column in columns],
                task=task,
                folds=_FOLDS,
                groups=self._groups,
                weights=None if even else weights,
                middle=self._middle,
                half=self._half,
            )
        return cross_fitted(
            codes,
            target,
            levels=[column.levels for column in columns],
            ordered=[column.values is not None for column in columns],
            task=task,
            folds=_FOLDS,
            groups=self._groups,
            weights=weights,
            outputs=outputs,
        )

    def _fit(
        self,
        base: float,
        *,
        intercept: float,
        weights: Sequence[Floats] | None = None,
        offset_weights: Sequence[Floats] | None = None,
        offset_start: float = 0.0,
        offset_scale: float = 0.0,
        bend: Floats | None = None,
        bend_edges: Floats | None = None,
        free: FreeModel | PublicModel | None = None,
        free_columns: tuple[int, ...] = (),
        pairs: Sequence[PairWeights] = (),
        offset_pairs: Sequence[PairWeights] = (),
    ) -> AdditiveFit:
        """Everything in the label's own units."""
        half = self._half
        zero = [np.zeros(column.levels) for column in self._columns]
        self.details["base"] = float(expit(base)) if not self._number else self._own(base)
        self.details["levels"] = self._levels()
        return AdditiveFit(
            weights=tuple(half * weight for weight in (weights or zero)),
            intercept=half * intercept + self._middle,
            offset_weights=None if offset_weights is None else tuple(offset_weights),
            offset_start=offset_start,
            offset_scale=half * offset_scale,
            free=free,
            free_columns=free_columns,
            bend_edges=np.zeros(0) if bend_edges is None or bend is None else bend_edges,
            bend=np.zeros(0) if bend is None else half * bend,
            pairs=tuple(pair.scaled(half) for pair in pairs),
            offset_pairs=tuple(offset_pairs),
            details=self.details,
            notes=self._notes,
        )

    def _levels(self) -> list[dict[str, Any]]:
        """Of each column: the part of rows with each level, exact ones of public columns, and the
        noise in what levels add: public ones under a private label, and private ones.
        """
        slope = self.details.get("slope", {"used": 1.0, "noise": 0.0})
        for place in self._public:
            column = self._columns[place]
            counts = self._shards.sum(_counted(column.codes, self._weights, column.levels))
            self._shares[place] = counts / self._n
        # A slope that noise has brought to nothing says nothing of what private columns may add.
        doubt = max(slope["used"], min(slope["noise"], 1.0))
        noise = {
            place: self._half * (doubt if place in self._private else slope["used"]) * each
            for place, each in self._noise.items()
        }
        return described_levels(self._shares, noise, len(self._columns))

    def _own(self, value: float) -> float:
        return self._middle + self._half * value

    # --- base rate and spread of a private label

    def _base_rate(self, window: tuple[float, float] = (-1.0, 1.0)) -> float:
        """Log odds of the second class, or the mean of a number within `window`."""
        assert self._base_stage is not None
        weights, n = self._even, self._even_n
        if self._number:
            middle, half = sum(window) / 2, (window[1] - window[0]) / 2
            held = weights * self._labelled * np.clip((self._target - middle) / half, -1, 1)
            if self._may_lack:
                value = np.array([held.sum(), weights @ self._labelled])
                total, n = self._base_stage.release(value, (2.0, math.sqrt(2)))
                n = max(n, 0.05 * self._even_n)
            else:
                total = self._base_stage.release(np.array([held.sum()]), (2.0, 1.0))[0]
            self._base_doubt = half * self._base_stage.noise((2.0, 1.0)) / n
            return float(np.clip(middle + half * total / n, *window))
        second = weights @ (self._target * self._labelled)
        if self._may_lack:
            first = weights @ ((1 - self._target) * self._labelled)
            moves = (math.sqrt(2), 1.0)
            second, first = np.maximum(
                self._base_stage.release(np.array([second, first]), moves), 1e-9 * n
            )
            n = second + first
        else:
            moves = (1.0, 1.0)
            second = self._base_stage.release(np.array([second]), moves)[0]
        # No closer to 0 or 1 than the noise allows to tell.
        least = min(max(2 * self._base_stage.noise(moves) / n, 1e-4), 0.25)
        rate = float(np.clip(second / n, least, 1 - least))
        self._base_doubt = self._base_stage.noise(moves) / n / (rate * (1 - rate))
        return float(logit(rate))

    def _label_window(self) -> tuple[tuple[float, float], float]:
        """Where a number's values lie, and their standard deviation; classes need neither."""
        whole = (-1.0, 1.0)
        if self._spread_stage is None:
            return whole, 1.0
        codes = np.searchsorted(LABEL_EDGES[1:-1], self._target, side="right")
        counts = np.bincount(codes, self._weights * self._labelled, len(LABEL_EDGES) - 1)
        moves = (math.sqrt(2), 1.0)
        noisy = self._spread_stage.release(counts.astype(np.float64), moves)
        noise = self._spread_stage.noise(moves)
        first, last = _grown(noisy, *_seen(noisy, noise), _MOST_ROWS * self._n)
        found = noisy[first : last + 1].sum()
        noisy = np.where(noisy < 2 * noise, 0.0, noisy)
        noisy[:first] = noisy[last + 1 :] = 0.0
        if found < _MOST_ROWS * self._n or noisy.sum() <= 0:
            return whole, 0.5
        window = (float(LABEL_EDGES[first]), float(LABEL_EDGES[last + 1]))
        shares, middles = noisy / noisy.sum(), (LABEL_EDGES[1:] + LABEL_EDGES[:-1]) / 2
        within = np.diff(LABEL_EDGES) ** 2 / 12
        square = float(shares @ ((middles - shares @ middles) ** 2 + within))
        unit = min(max(math.sqrt(square), 0.005), 0.7)
        self.details["spread"] = self._half * math.sqrt(square)
        window = self._widened(window, unit)
        self._cut = tail_cut(middles / unit, shares, self._farthest())
        return window, unit

    def _widened(self, window: tuple[float, float], unit: float) -> tuple[float, float]:
        """As wide as the noise of the mean allows: tails that the histogram misses count too."""
        assert self._base_stage is not None
        noise = self._base_stage.noise((2.0, 1.0)) / self._even_n
        low, high = window
        more = max(_MEAN_NOISE * unit / noise - (high - low) / 2, 0.0)
        return max(low - more, -1.0), min(high + more, 1.0)

    def _farthest(self) -> float:
        """How many spreads from its prediction a number may count, by public facts."""
        strength = self._mu * self._n / self._most
        return min(strength / (_FOR_TAILS * len(self._columns)), _FARTHEST)

    # --- public columns under a private label

    def _from_public(
        self, base: float, unit: float
    ) -> tuple[list[Floats], float, list[PairWeights]]:
        """Weights of public levels, a start, and pairs, from releases of sums by label."""
        assert self._public_stage is not None
        target = (self._target - base) / unit if self._number else self._target
        found = fit_public_sums(
            [self._columns[place] for place in self._public],
            target,
            labelled=self._labelled,
            weights=self._weights,
            stage=self._public_stage,
            start=0.0 if self._number else base,
            label_range=(-self._cut, self._cut) if self._number else (0.0, 1.0),
            number=self._number,
            shards=self._shards,
            start_doubt=self._base_doubt / unit,
            pair_looks=self.plan.pair_looks,
        )
        noises = zip(self._public, found.noise, strict=True)
        self._noise |= {place: unit * each for place, each in noises}
        weights = [np.zeros(column.levels) for column in self._columns]
        for place, weight in zip(self._public, found.weights, strict=True):
            weights[place] = unit * weight
        pairs = [pair.scaled(unit).among(self._public) for pair in found.pairs]
        if pairs:
            self.details["public_pairs"] = self._names(pairs)
        return weights, base + unit * found.start if self._number else found.start, pairs

    # --- private columns

    def _stage_columns(
        self, offset: Floats | None, known: Floats | None
    ) -> tuple[list[CodedColumn], Floats]:
        """The private columns, and the offset's own levels, so that its scale can be corrected.

        `known` are the offsets of the rows of all machines.
        """
        stage = [self._columns[place] for place in self._private]
        if offset is None or known is None:
            return stage, np.zeros(0)
        edges = np.unique(np.quantile(known, np.linspace(0, 1, 17)[1:-1]))
        codes = np.searchsorted(edges, known, side="right")
        counts = np.bincount(codes, minlength=len(edges) + 1)
        means = np.bincount(codes, known, minlength=len(edges) + 1) / np.maximum(counts, 1)
        column = CodedColumn(
            name="offset",
            private=False,
            codes=codes[self._here].astype(np.uint8),
            levels=len(edges) + 2,
            values=means,
        )
        return [*stage, column], edges

    def _counts(self, stage: Sequence[CodedColumn]) -> list[LevelFeatures]:
        """Level features from noisy counts of private columns and exact ones of public ones."""
        assert self._counts_stage is not None
        hidden = [place for place, column in enumerate(stage) if column.private]
        exact = CodeSums([stage[place] for place in hidden]).sums(self._weights)
        moves = (math.sqrt(2 * len(hidden)), math.sqrt(len(hidden)))
        noisy = self._counts_stage.release(np.concatenate(exact), moves)
        ends = np.cumsum([stage[place].levels for place in hidden])
        released = dict(zip(hidden, np.split(noisy, ends[:-1]), strict=True))
        noise = self._counts_stage.noise(moves)
        # Exact counts are summed by themselves: beside a private column, the order of the sum, and
        # with it the last digit, would follow from private codes.
        return [
            level_features(column, released[place], noise, self._n)
            if column.private
            else self._known_features(column)
            for place, column in enumerate(stage)
        ]

    def _known_features(self, column: CodedColumn) -> LevelFeatures:
        """Level features of a public column."""
        counts = self._shards.sum(_counted(column.codes, self._weights, column.levels))
        return level_features(column, counts, 0.0, self._n)

    def _descend(
        self,
        stage: Sequence[CodedColumn],
        offset: Floats,
        unit: float,
        base: float,
        known: Floats | None,
    ) -> PrivatePart:
        """The private part of the score, in units of `unit`."""
        assert self._worth_stage is not None
        assert self._descent_stage is not None
        features = self._counts(stage)
        with_offset = not self._label_private or bool(self._public)
        scaled = (self._target - offset) / unit if self._number else self._target
        part = Descent(
            sums=CodeSums(stage),
            hidden=[column.private for column in stage],
            features=features,
            target=scaled,
            labelled=self._labelled,
            weights=self._weights,
            rows=self._n,
            offset=offset if with_offset and not self._number else None,
            known=known if with_offset and not self._number else None,
            start=0.0 if self._number or with_offset else base,
            number=self._number,
            label_private=self._label_private,
            steps=self.plan.steps,
            worth=self._worth_stage,
            gradients=self._descent_stage,
            cut=self._cut,
        ).run()
        for place, feature in zip(self._private, part.features, strict=False):
            self._shares[place] = share_by_level(feature)
        self._noise |= {p: unit * d for p, d in zip(self._private, part.doubt, strict=False)}
        self._features |= dict(zip(self._private, features, strict=False))
        return part

    def _level(self, offset: Floats | float, mean: float, part: PrivatePart) -> float:
        """What the intercept lacks to the mean chance of the offset, as far as noise made it so.

        `mean` is that of the private score. A score that is not normal needs another intercept.
        """
        level = levelled(score_nodes(offset), mean, part.spread**2)
        doubt = math.hypot(self._base_doubt, _NOT_NORMAL * level)
        return level * (1 - kept_of(doubt, part.intercept_noise))

    # --- pairs of columns

    def _paired(self, scores: Floats, middle: float, unit: float, spread: float) -> PairsPart:
        """What pairs of columns add to the rows' scores, in units of `unit`.

        `middle` and `spread` are those of the scores as far as releases and public values tell.
        """
        if self._pairs_stage is None or self._pair_descent_stage is None:
            return PairsPart(pairs=(), intercept=0.0, spread=0.0)
        for place in self._public:
            self._features[place] = self._known_features(self._columns[place])
        nodes = ndtri((np.arange(40) + 0.5) / 40)
        found = PairSearch(
            columns=self._columns,
            features=[self._features[place] for place in range(len(self._columns))],
            scores=scores / unit if self._number else scores,
            target=self._target / unit if self._number else self._target,
            labelled=self._labelled,
            weights=self._weights,
            rows=self._n,
            known=middle + spread * nodes,
            number=self._number,
            label_private=self._label_private,
            cut=self._cut,
            finding=self._pairs_stage,
            descent=self._pair_descent_stage,
        ).run()
        self.details["pairs"] = self._names(found.pairs)
        return found

    def _names(self, pairs: Sequence[PairWeights]) -> list[list[str]]:
        return [[self._columns[p].name for p in (pair.first, pair.second)] for pair in pairs]

    # --- comparison and covered scores

    def _compared(
        self,
        offset: Floats | float,
        extra: Floats,
        unit: float,
        expected: tuple[float, float, float],
        missed: float,
    ) -> tuple[float, float]:
        """Shift and slope of offset + shift + slope · extra: where errors by score vanish.

        `expected` is what the mean and the standard deviation of `extra` are taken to be, and the
        part of the latter that private columns have, which noisy counts may tell wrongly. A slope
        comes with the shift that leaves the mean chance as the offset has it.

        By `missed` the mean label exceeds that of the offset. Of a number that is known without a
        cut, and the shift is what makes predictions right on average: errors that are cut would
        move it towards the median.

        Noise that could have made the slope is taken off it, as James and Stein do, so that a model
        that noise has made falls back to the offset. Clipped scores only multiply errors: the
        errors are those of the scores as they are, or large scores would bias the slope.
        """
        assert self._comparison_stage is not None
        centre, spread, own = expected
        # Short scores multiply errors, which makes noise small; long ones measure curvature.
        short = min(max(spread / unit, 0.1), 2.0)
        long = 3 * short
        sums = np.zeros(8)
        for start in range(0, len(extra), BLOCK):
            rows = slice(start, start + BLOCK)
            known = offset[rows] if isinstance(offset, np.ndarray) else offset
            sums += self._errors(known, extra[rows], unit, short, long, rows)
        units, moves = comparison_moves(short, long, number=self._number, cut=self._cut)
        noisy = self._comparison_stage.release(sums / units, moves) * units
        noise = self._comparison_stage.noise(moves) * units
        believed, doubted = (spread / unit) ** 2, (own / unit) ** 2
        told_mean = float(np.clip(noisy[2] / self._even_n, -long, long)) - centre
        mean = centre + told_mean * kept_of(
            _OFF_CENTRE * math.sqrt(believed), float(noise[2] / self._even_n)
        )
        told = float(noisy[3] / self._even_n) - mean**2 - believed
        heard = doubted**2 / (doubted**2 + float(noise[3] / self._even_n) ** 2)
        variance = max(believed + heard * told, believed - doubted, 0.02 * believed, 1e-6)
        # Curvatures as released, held against those of a normal score as far as they are noisy.
        known = self._shards.gather(offset) if isinstance(offset, np.ndarray) else offset
        parts_of_offset = score_nodes(known) / unit
        normal = self._even_n * self._curvatures(parts_of_offset, mean, variance, short)
        size = np.sqrt(normal[0] * np.array([normal[0], normal[0], normal[3], normal[3]]))
        doubt = _NORMAL * size * np.array([1, short, 1, 1])
        doubt[3] = _NORMAL * normal[3]
        bent = normal + doubt**2 / (doubt**2 + noise[4:] ** 2) * (noisy[4:] - normal)
        bent = bent.reshape(2, 2).T

        def level(slope: float) -> float:
            if self._number:
                return 0.0
            whole = levelled(parts_of_offset, mean, variance)
            return levelled(parts_of_offset, mean, variance, slope) - slope * whole

        def known_at(slope: float) -> tuple[Floats, Floats]:
            """What errors tell of shift and slope less 1 where they bend as on the way there."""
            way = self._even_n * self._curvatures(parts_of_offset, mean, variance, short, slope)
            bends = bent + (way - normal).reshape(2, 2).T
            precise = bends.T / noise[:2] ** 2
            return precise @ bends, precise @ noisy[:2]

        def likeliest(slope: float) -> tuple[Floats, Floats]:
            """Shift, slope less 1 and their covariance."""
            precision, right = known_at(slope)
            # A shift is near the one that a slope comes with, a slope may be anything.
            covariance = np.linalg.inv(precision + np.diag([1 / self._off**2, 1e-9]))
            found: Floats = covariance @ (right + np.array([level(slope) / self._off**2, 0.0]))
            return found, covariance.astype(np.float64)

        def beyond(slope: float) -> float:
            return 1 + float(likeliest(slope)[0][1]) - slope

        # Scores far too long hardly bend errors where they stand: one step would go astray.
        ends = beyond(0.0) <= 0, beyond(_STEEPEST) >= 0
        at = 0.0 if ends[0] else _STEEPEST if ends[1] else brentq(beyond, 0, _STEEPEST, xtol=1e-13)
        off, covariance = likeliest(at)
        slope, blur = 1 + float(off[1]), math.sqrt(float(covariance[1, 1]))
        used = believed_slope(slope, blur)
        # The best shift at the slope that is used, told from the one that this slope comes with.
        (precision, errors), own_level = known_at(at), level(used)
        beside = errors[0] - precision[0, 1] * (used - 1) - precision[0, 0] * own_level
        shift = float(beside / (precision[0, 0] + 1 / self._off**2))
        # Where the scores are given up, the offset alone is left: it needs no shift.
        shift = own_level + min(max(shift, -3 * self._off), 3 * self._off) * min(used, 1.0)
        if self._number:
            right = missed / unit - used * mean
            shift += kept_of(_OFF_BY_CUT, self._base_doubt / unit) * (right - shift)
        self.details["slope"] = {
            "estimate": slope,
            "noise": blur,
            "used": used,
            "shift": shift,
        }
        return unit * shift, used

    def _errors(
        self,
        offset: Floats | float,
        extra: Floats,
        unit: float,
        short: float,
        long: float,
        rows: slice,
    ) -> Floats:
        """Sums over some rows of e·(1, g), z·(1, z), c·(1, g, z, g·z); docs/proofs/additive.md."""
        z, g = np.clip(extra / unit, -long, long), np.clip(extra / unit, -short, short)
        score, target = (offset + extra) / unit, self._target[rows]
        if self._number:
            cut = _ERROR * self._cut
            error = np.clip(target / unit - score, -cut, cut)
            bend = (np.abs(error) < cut).astype(np.float64)
        else:
            chance = expit(score)
            weight = bounded_weight(chance, 0.5, 0.5)
            error, bend = (target - chance) * weight, chance * (1 - chance) * weight
        all_rows = self._even[rows]
        error, bend = all_rows * self._labelled[rows] * np.stack([error, bend])
        errors = error.sum(), error @ g, all_rows @ z, all_rows @ z**2
        return np.array([*errors, bend.sum(), bend @ g, bend @ z, bend @ (g * z)])

    def _curvatures(
        self, offsets: Floats, mean: float, variance: float, short: float, slope: float = 1.0
    ) -> Floats:
        """Means of c·(1, g, z, g·z), c how an error bends with a score offset + z, g = z cut short.

        Or how it bends between offset + z and offset + slope · z. As if z were normal; offsets are
        public, or one released number.
        """
        z = mean + math.sqrt(variance) * NODES
        bend = NODE_SHARES
        if not self._number:
            chance = expit(offsets[:, None] + z)
            weight = bounded_weight(chance, 0.5, 0.5)
            way = np.where(np.abs((1 - slope) * z) < 1e-6, 0.0, (1 - slope) * z)
            fall = chance - expit(offsets[:, None] + slope * z)
            steep = np.where(way == 0, chance * (1 - chance), fall / np.where(way == 0, 1.0, way))
            bend = bend * (steep * weight).mean(axis=0)
        cut = np.clip(z, -short, short)
        found: Floats = np.array([bend.sum(), bend @ cut, bend @ z, bend @ (cut * z)])
        return found

    def _cover(
        self,
        scores: Floats,
        base: float,
        unit: float,
        spread: float,
        alone: Floats | None = None,
    ) -> None:
        """Scores of the final model on its own rows that the guarantee covers, with noise bars.

        Also those of `alone`, what public columns alone tell of a private label.
        """
        assert self._covered_stage is not None
        weights, stage = self._even * self._labelled, self._covered_stage
        rows = None if self._may_lack and self._label_private else self._even_n
        if self._number:
            self.details["covered"] = covered_numbers(
                self._target - scores,
                weights,
                stage,
                unit,
                self._half,
                rows=rows,
                most=self._even_most,
                public=None if alone is None else self._target - alone,
            )
        else:
            self.details["covered"] = covered_classes(
                scores,
                self._target,
                weights,
                stage,
                base,
                max(spread, 0.2),
                rows=rows,
                most=self._even_most,
                public=None if alone is None else self._beside_base(alone, base),
            )

    def _beside_base(self, alone: Floats, base: float) -> PublicAlone:
        """Public scores held against the base rate's, of two classes."""
        rate = float(expit(base))
        return PublicAlone.of(
            alone,
            self._shards.gather(alone),
            np.array([0.0, base]),
            self._target.astype(np.intp),
            constant=-float(rate * log_expit(base) + (1 - rate) * log_expit(-base)),
            constant_noise=abs(base) * rate * (1 - rate) * self._base_doubt,
        )
