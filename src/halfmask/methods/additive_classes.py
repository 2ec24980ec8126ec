"""`additive` for three classes and more: one score per class, one release for all of them.

The stages are those of two classes (additive.py). A row's slope is the vector (p − e)·ω(p) with
ω(p) = 1/(1 + max p), e the indicator of its class: it vanishes on average where p is right, and two
such vectors are never further apart than √(5/2). So noise does not grow with the number of classes.
Classes too rare to be told from noise share one score. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax, softmax

from halfmask.data.products import BLOCK, CodeSums
from halfmask.methods.additive import AdditiveFit, AdditiveRun, believed_slope, kept_of
from halfmask.methods.additive_descent import Descent, Moves, PrivatePart
from halfmask.methods.covered import PublicAlone, covered_many
from halfmask.methods.public_sums import fit_public_class_sums
from halfmask.methods.smooth_codes import LevelFeatures, share_by_level
from halfmask.table import CodedColumn, Table
from halfmask.types import Floats

# A class with fewer rows than so many standard deviations of their released count, or, where the
# label is public, than so many over μ, shares its score with others like it.
_UNCLEAR, _FEW = 3.0, 5.0
# What the comparison's sums get: errors by class, errors by score, and these without the score.
_COMPARISON = np.array([0.15, 0.425, 0.425])
# How far the change of errors by score may be from what the released spread of scores says, in
# parts of that; and its least part.
_EXPECTED, _LEAST_CHANGE = 1.0, 0.05


def slope_weight(chances: Floats) -> Floats:
    """ω(p) for chances of classes (first axis)."""
    found: Floats = 1 / (1 + chances.max(axis=0))
    return found


def longest_slope(classes: int) -> float:
    """The largest norm of a row's slope over all p and labels."""
    return math.sqrt(classes / (classes + 1))


def class_moves(classes: int, radius: float, diameter: float, *, label_private: bool) -> Moves:
    """How far a row of norm at most `radius` moves Σ slope ⊗ row: (replace, withhold)."""
    longest = longest_slope(classes)
    apart = 2.0 * longest**2
    if label_private:
        least = 1 / (classes + 1)
        apart = max(2.5 - least, 2 + 2 * least - 4 * least**2)
    return max(math.sqrt(apart) * radius, longest * diameter), longest * radius


def comparison_class_moves(classes: int, short: float) -> tuple[Floats, Moves]:
    """Units of the comparison's sums, and a row's moves in these: see `comparison_moves`."""
    apart, alone = class_moves(classes, 1.0, 0.0, label_private=True)
    by_score = 2 * longest_slope(classes) * short
    units = np.array([apart, by_score, by_score])
    parts = np.array([alone / apart, 0.5, 0.5])
    return units / np.sqrt(_COMPARISON), (1.0, math.sqrt(float(_COMPARISON @ parts**2)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassesFit:
    """One additive score per class."""

    outputs: tuple[AdditiveFit, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scores(self, columns: Sequence[CodedColumn]) -> Floats:
        """Rows x classes."""
        return np.column_stack([output.scores(columns) for output in self.outputs])

    # As of two classes, with a last axis of classes: what effects are drawn from.

    @property
    def weights(self) -> tuple[Floats, ...]:
        return _by_class([output.weights for output in self.outputs])

    @property
    def offset_weights(self) -> tuple[Floats, ...] | None:
        known = [output.offset_weights for output in self.outputs]
        given = [each for each in known if each is not None]
        return _by_class(given) if len(given) == len(known) else None

    @property
    def offset_scale(self) -> float:
        return self.outputs[0].offset_scale

    @property
    def free(self) -> Any:
        return self.outputs[0].free

    @property
    def free_columns(self) -> tuple[int, ...]:
        return self.outputs[0].free_columns

    @property
    def bend(self) -> Floats:
        return self.outputs[0].bend


def _by_class(tables: Sequence[tuple[Floats, ...]]) -> tuple[Floats, ...]:
    return tuple(np.stack(own, axis=1) for own in zip(*tables, strict=True))


class ClassesDescent(Descent):
    """The descent with one score per class; arrays have a first axis of classes."""

    def __init__(self, *, classes: int, **given: Any) -> None:
        self._classes = classes
        super().__init__(number=False, **given)

    def _known_rate(self) -> float:
        return 0.5

    def _zeros(self) -> list[Floats]:
        return [np.zeros((self._classes, f.vectors.shape[1])) for f in self._features]

    def _bounds(self, factors: Floats) -> tuple[float, float, Moves]:
        radius, diameter = self._lengths(factors)
        moves = class_moves(self._classes, radius, diameter, label_private=self._label_private)
        return 1.0, 1.0, moves

    def _slopes(self, low: float, high: float, start: Any) -> Callable[[Floats, slice], Floats]:
        offset, target, weights = self._offset, self._target, self._weights
        start = np.asarray(start)[:, None]

        def slopes(scores: Floats, rows: slice) -> Floats:
            scores = scores + start
            if offset is not None:
                scores = scores + offset[:, rows]
            found: Floats = -weights[rows] * errors(softmax(scores, axis=0), target[rows])
            return found

        return slopes

    def _curvature(self, low: float, high: float) -> Any:
        if self._known is None:
            return _bend(softmax(self._start))
        total = np.zeros(self._classes)
        for start in range(0, self._known.shape[1], BLOCK):
            chances = softmax(self._known[:, start : start + BLOCK], axis=0)
            total += _bend(chances).sum(axis=1)
        return total / self._known.shape[1]

    def _bent(self, effects: Sequence[Floats], low: float, high: float) -> list[Floats]:
        known = self._start if self._known is None else np.mean(self._known, axis=1)
        found = []
        for f, effect in zip(self._features, effects, strict=True):
            centred = effect - (effect @ f.share)[:, None]
            way = known[:, None, None] + np.multiply.outer(centred, np.linspace(0, 1, 5))
            weights = f.share * _bend(softmax(way, axis=0)).max(axis=2)
            middle = weights @ f.vectors / np.maximum(weights.sum(axis=1), 1e-300)[:, None]
            vectors = f.vectors - middle[:, None, :]
            found.append(self._rows * np.einsum("kg,kgi,kgj->kij", weights, vectors, vectors))
        return found

    def _summed(
        self, tables: Sequence[Floats], slopes: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], Any]:
        return self._sums.class_sums_at(tables, slopes)


def errors(chances: Floats, target: NDArray[np.intp]) -> Floats:
    """(e − p)·ω(p) of each row: classes x rows."""
    found = -chances
    found[target, np.arange(len(target))] += 1
    return found * slope_weight(chances)


def _bend(chances: Floats) -> Floats:
    """How fast a class's slope changes with its own score."""
    found: Floats = chances * (1 - chances) * slope_weight(chances)
    return found


def _moved_back(known: Floats, centre: Floats, variance: Floats) -> Floats:
    """What leaves mean chances as they are known, by class, where scores are added to them.

    These are taken as normal, independent of one another and of what is known of rows.
    """
    places = np.linspace(0, known.shape[1] - 1, 4096).astype(np.intp)
    draws = np.random.default_rng(0).normal(size=(len(known), len(places)))
    before = known[:, places]
    after = before + centre[:, None] + np.sqrt(variance)[:, None] * draws
    mean = [np.maximum(softmax(each, axis=0).mean(axis=1), 1e-12) for each in (before, after)]
    found: Floats = np.log(mean[0] / mean[1])
    return found


class ClassesRun(AdditiveRun):
    """One fit. Arrays by class have the classes that are learnt; `_pool` maps all to these."""

    def _set_target(self, table: Table) -> None:
        assert table.label is not None
        assert table.classes is not None
        self._labelled = ~table.skipped
        self._may_lack = table.schema is not None and table.schema.label.missing == "skip"
        self._middle, self._half = 0.0, 1.0
        self._class = np.where(self._labelled, table.label, 0).astype(np.intp)
        self._classes = len(table.classes)

    def run(self) -> ClassesFit:  # type: ignore[override]
        """All stages; what is returned follows from releases and public values."""
        shares = self._class_shares()
        self._pool, base, within = self._pooled(shares)
        pools = len(base)
        if self.plan.steps == 0:
            self.details["base_rate_only"] = True
            return self._fit_of(shares, [self._empty(float(b)) for b in base], within)
        self._target = self._pool[self._class]
        outputs = [self._empty(0.0) for _ in base]
        # What public columns tell each row; and the rows of all machines.
        offset: Floats | None = None
        everyone: Floats | None = None
        if self._public and self._label_private:
            placed, starts = self._class_sums(base)
            weights = [np.zeros((column.levels, pools)) for column in self._columns]
            for place, weight in zip(self._public, placed, strict=True):
                weights[place] = weight
            offset = self._scores(self._columns, weights) + starts[:, None]
            everyone = self._shards.gather(offset.T).T
            outputs = [
                replace(
                    output,
                    offset_weights=tuple(weight[:, k] for weight in weights),
                    offset_start=float(starts[k]),
                    offset_scale=1.0,
                )
                for k, output in enumerate(outputs)
            ]
        elif self._public:
            everyone, outputs = self._free_models(outputs)
            offset = everyone[:, self._here]
            self.details["free_score"] = self._free_loss(everyone, within)
        known = base[:, None] if offset is None else offset
        extra, variance, centre = np.zeros((pools, 1)), np.zeros(pools), np.zeros(pools)
        added, private = np.zeros(pools), [np.zeros((0, pools))] * 0
        if self._private:
            stage = [self._columns[place] for place in self._private]
            tilt = self._class_tilt(everyone)
            part = self._descend_classes(
                stage,
                None if offset is None else offset + tilt,
                None if everyone is None else everyone + tilt,
                base,
            )
            private = part.by_level()
            # Without an offset the intercepts hold the base rates.
            added = part.intercept - (base if offset is None else 0.0)
            extra = self._scores(stage, private) + added[:, None]
            variance, centre = part.variance, part.mean - (base if offset is None else 0.0)
            move = _moved_back(base[:, None] if everyone is None else everyone, centre, variance)
            if self._groups is None:  # Steps of weighed rows say nothing of the rates of rows.
                noise, doubt = part.intercept_noise, self._base_doubt / np.exp(base)
                move = move * noise**2 / (noise**2 + doubt**2)
            added, extra, centre = added + move, extra + move[:, None], centre + move
        alone: PublicAlone | None = None
        if self._label_private and offset is not None and everyone is not None:
            if self._groups is not None:
                # Sums were of weighed rows; base rates are those of rows as they are.
                move = base - np.log(softmax(everyone, axis=0).mean(axis=1))
                offset, everyone = offset + move[:, None], everyone + move[:, None]
                outputs = [
                    replace(output, offset_start=output.offset_start + float(own))
                    for output, own in zip(outputs, move, strict=True)
                ]
            if self._private:
                alone = self._beside_shares(offset, everyone, base, shares)
            # The whole score is held against the base rates.
            extra = extra + offset - base[:, None]
            variance = variance + everyone.var(axis=1)
            centre = centre + everyone.mean(axis=1) - base
            known, everyone = base[:, None], None
        bends = self._typical_bends(base[:, None] if everyone is None else everyone)
        shifts, slope = self._compared_classes(known, extra, centre, variance, bends)
        self._cover_classes(known + shifts[:, None] + slope * extra, within, alone)
        held = self._label_private and offset is not None
        for k, output in enumerate(outputs):
            weights_of = list(output.weights)
            for place, weight in zip(self._private, private, strict=True):
                weights_of[place] = slope * weight[:, k]
            intercept = shifts[k] + slope * added[k]
            if offset is None:
                intercept += base[k]
            elif held:
                intercept += (1 - slope) * base[k]
            scale = slope if held else output.offset_scale
            outputs[k] = replace(
                output,
                weights=tuple(weights_of),
                intercept=float(intercept),
                offset_scale=float(scale),
            )
        return self._fit_of(shares, outputs, within)

    # --- classes

    def _class_shares(self) -> Floats:
        """Each class's share of the rows: exact where the label is public, else one release."""
        weights = self._given if self._base_stage is None else self._even
        counts = np.bincount(self._class, weights * self._labelled, minlength=self._classes).astype(
            np.float64
        )
        self._unclear = _FEW * self._even_most / self._mu
        if self._base_stage is not None:
            moves = (math.sqrt(2), 1.0)
            counts = self._base_stage.release(counts, moves)
            self._unclear = _UNCLEAR * self._base_stage.noise(moves)
            self._base_doubt = self._base_stage.noise(moves) / self._even_n
            # No class is rarer than noise allows to tell.
            counts = np.maximum(counts, self._unclear / _UNCLEAR)
        else:
            counts = self._shards.sum(counts)
        counts = np.maximum(counts, 0.5)
        shares: Floats = counts / counts.sum()
        return shares

    def _pooled(self, shares: Floats) -> tuple[NDArray[np.intp], Floats, Floats]:
        """The learnt class of each class, their log shares, and each class's log share within."""
        rare = shares * self._even_n < self._unclear
        if rare.sum() < 2 or rare.all():
            rare[:] = False
        pool = np.cumsum(~rare) - 1
        pool[rare] = int((~rare).sum())
        total = np.bincount(pool, shares)
        self.details["pooled_classes"] = int(rare.sum())
        self.details["pool"] = pool.tolist()
        return pool, np.log(total), np.log(shares / total[pool])

    def _empty(self, intercept: float) -> AdditiveFit:
        zero = tuple(np.zeros(column.levels) for column in self._columns)
        return AdditiveFit(weights=zero, intercept=intercept)

    def _fit_of(self, shares: Floats, outputs: Sequence[AdditiveFit], within: Floats) -> ClassesFit:
        """All classes: those of a pool have its score and their share of it."""
        self.details["base"] = [float(share) for share in shares]
        self.details["levels"] = self._levels()
        every = [
            replace(outputs[pool], intercept=outputs[pool].intercept + float(own))
            for pool, own in zip(self._pool, within, strict=True)
        ]
        return ClassesFit(outputs=tuple(every), details=self.details, notes=self._notes)

    @staticmethod
    def _scores(columns: Sequence[CodedColumn], tables: Sequence[Floats]) -> Floats:
        """Classes x rows."""
        sums = CodeSums(columns)
        classes = tables[0].shape[1]
        return np.stack([sums.scores([table[:, k] for table in tables]) for k in range(classes)])

    # --- public columns

    def _class_sums(self, base: Floats) -> tuple[list[Floats], Floats]:
        assert self._public_stage is not None
        return fit_public_class_sums(
            [self._columns[place] for place in self._public],
            self._target,
            labelled=self._labelled,
            weights=self._weights,
            stage=self._public_stage,
            start=base,
            shards=self._shards,
        )

    def _free_models(self, outputs: Sequence[AdditiveFit]) -> tuple[Floats, list[AdditiveFit]]:
        """A free model for each learnt class against the rest; scores are logs of their chances,
        those of the rows of all machines.
        """
        places, scores, found = tuple(self._public), [], []
        weights = self._shards.gather(self._given)
        target = self._shards.gather(self._target.astype(np.float64))
        for k, output in enumerate(outputs):
            one = (target == k).astype(np.float64)
            own, free = self._free_model(places, one, weights, outputs=len(outputs))
            scores.append(log_expit(own))
            found.append(
                replace(output, free=free, free_columns=places, offset_scale=1.0, log_chance=True)
            )
        return log_softmax(np.stack(scores), axis=0), found

    def _free_loss(self, everyone: Floats, within: Floats) -> dict[str, float]:
        """How well public columns alone tell a public class, on rows that they did not see."""
        classes = self._shards.gather(self._class.astype(np.float64)).astype(np.intp)
        told = everyone[self._pool[classes], np.arange(len(classes))] + within[classes]
        return {"log_loss": -float(np.average(told, weights=self._shards.gather(self._given)))}

    # --- private columns

    def _class_tilt(self, everyone: Floats | None) -> Floats:
        """What makes a free model right on average of weighed rows, where rows are not alike."""
        if self._label_private or everyone is None or self._groups is None:
            return np.zeros((1, 1))
        weights = self._shards.gather(self._weights)
        target = self._shards.gather(self._target.astype(np.float64)).astype(np.intp)
        told = softmax(everyone, axis=0) @ weights
        seen = np.bincount(target, weights, minlength=len(told))
        found: Floats = np.log((seen + 1) / (told + 1))[:, None]
        return found

    def _descend_classes(
        self,
        stage: Sequence[CodedColumn],
        offset: Floats | None,
        everyone: Floats | None,
        base: Floats,
    ) -> PrivatePart:
        assert self._worth_stage is not None
        assert self._descent_stage is not None
        features: list[LevelFeatures] = self._counts(stage)
        part = ClassesDescent(
            classes=len(base),
            sums=CodeSums(stage),
            hidden=[True] * len(stage),
            features=features,
            target=self._target,
            labelled=self._labelled,
            weights=self._weights,
            rows=self._n,
            offset=offset,
            known=everyone,
            start=base if offset is None else np.zeros(len(base)),
            label_private=self._label_private,
            steps=self.plan.steps,
            worth=self._worth_stage,
            gradients=self._descent_stage,
        ).run()
        for place, feature in zip(self._private, part.features, strict=True):
            self._shares[place] = share_by_level(feature)
        return part

    # --- comparison and covered scores

    @staticmethod
    def _typical_bends(known: Floats) -> tuple[Floats, Floats]:
        """How fast slopes of classes change with scores, at scores that are known of rows.

        With their own score alone; and with shifts of all classes whose mean over chances is zero,
        as (diag(p) − ppᵀ)·s = p·s where p'·s = 0.
        """
        chances = softmax(known[:, :: max(known.shape[1] // 20_000, 1)], axis=0)
        return _bend(chances).mean(axis=1), (chances * slope_weight(chances)).mean(axis=1)

    def _compared_classes(
        self,
        known: Floats,
        extra: Floats,
        centre: Floats,
        variance: Floats,
        bends: tuple[Floats, Floats],
    ) -> tuple[Floats, float]:
        """Shifts by class and one slope of known + shifts + slope · extra.

        Errors by score are measured with the score and without it. Where they vanish between the
        two is the slope; as for two classes, noise that could have made it is taken off. What rows
        differ by decides: `centre`, by released counts the mean of `extra`, is taken off before
        scores are cut. Of rare classes it can be long, and says little.
        """
        assert self._comparison_stage is not None
        classes, n = len(known), len(self._target)
        short = min(max(math.sqrt(float(variance.sum())), 0.15), 3.0)
        by_class, by_score, without = np.zeros(classes), 0.0, 0.0
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            z = extra[:, rows] if extra.shape[1] > 1 else np.repeat(extra, n, axis=1)[:, rows]
            offset = known[:, rows] if known.shape[1] > 1 else known
            target, weights = self._target[rows], self._even[rows] * self._labelled[rows]
            error = errors(softmax(offset + z, axis=0), target) * weights
            alone = np.broadcast_to(softmax(offset, axis=0), error.shape)
            g = z - centre[:, None]
            g = g - g.mean(axis=0)
            length = np.maximum(np.sqrt(np.sum(g**2, axis=0)), 1e-12)
            g = g * np.minimum(1.0, short / length)
            by_class += error.sum(axis=1)
            by_score += float(np.sum(error * g))
            without += float(np.sum(errors(alone, target) * weights * g))
        units, moves = comparison_class_moves(classes, short)
        value = np.concatenate([by_class / units[0], [by_score / units[1], without / units[2]]])
        noisy = self._comparison_stage.release(value, moves)
        noise = self._comparison_stage.noise(moves) * units
        # By how much the score changes errors: as measured, held against what scores whose variance
        # is as released would do.
        with_it, without = (float(each) for each in noisy[-2:] * units[1:])
        likely = max(self._even_n * float(bends[0] @ variance), 1e-9)
        heard = kept_of(_EXPECTED * likely, math.sqrt(2) * float(noise[1]))
        change = likely + heard * (without - with_it - likely)
        change = max(change, _LEAST_CHANGE * likely)
        slope = 0.5 + (with_it + without) / (2 * change)
        doubt = 0.5 + 2 * heard * (slope - 0.5) ** 2
        blur = float(noise[1]) * math.sqrt(doubt) / change
        used = believed_slope(slope, blur)
        moved = self._even_n * bends[1]
        shifts = moved * noisy[:classes] * units[0] / (moved**2 + (noise[0] / self._off) ** 2)
        # Where the scores are given up, what is known is left as it is.
        shifts = np.clip(shifts, -3 * self._off, 3 * self._off) * min(used, 1.0)
        self.details["slope"] = {"estimate": slope, "noise": blur, "used": used}
        return shifts, used

    def _beside_shares(
        self, offset: Floats, everyone: Floats, base: Floats, shares: Floats
    ) -> PublicAlone:
        """Public scores held against the released shares of classes."""
        logs = np.log(shares)
        constant = -float(shares @ logs)
        return PublicAlone.of(
            offset,
            everyone,
            base,
            self._target,
            constant=constant,
            constant_noise=self._base_doubt * float(np.linalg.norm(logs + constant)),
        )

    def _cover_classes(
        self, scores: Floats, within: Floats, alone: PublicAlone | None = None
    ) -> None:
        assert self._covered_stage is not None
        if scores.shape[1] == 1:
            scores = np.repeat(scores, len(self._target), axis=1)
        rows = None if self._may_lack and self._label_private else self._even_n
        self.details["covered"] = covered_many(
            scores,
            self._pool,
            within,
            self._class,
            self._even * self._labelled,
            self._covered_stage,
            rows=rows,
            most=self._even_most,
            public=alone,
        )
