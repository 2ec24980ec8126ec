"""From events to epsilon and back: the composition of everything a ledger holds, by relation.

Unsampled Gaussians have a closed form; everything else is composed as privacy loss distributions.
The answer is never below the truth and never above the bound that ignores sampling. Guarantee:
docs/proofs/composition.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomizedResponseEvent,
)
from halfmask.accounting.gaussian import gaussian_delta, gaussian_epsilon
from halfmask.accounting.relations import Relation, check_delta, check_relation
from halfmask.errors import AccountingError

_ROUNDING = 2.0**-50

if TYPE_CHECKING:
    from halfmask.accounting.composition import Composition
    from halfmask.accounting.loss_distributions import Direction


def epsilon(events: Sequence[Event], *, delta: float, relation: Relation) -> float:
    """The epsilon of all `events` together at `delta`, under `relation`."""
    check_delta(delta)
    check_relation(relation)
    return _epsilon(_merge(events), delta, relation)


def delta(events: Sequence[Event], *, epsilon: float, relation: Relation) -> float:
    """The delta of all `events` together at `epsilon` >= 0, under `relation`."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise AccountingError(f"Expected a finite epsilon >= 0, got {epsilon}.")
    check_relation(relation)
    merged = _merge(events)
    mu, pure = _without_sampling(merged, relation)
    bound = 1.0 if epsilon < pure else gaussian_delta(mu, epsilon - pure)
    if _closed_form(merged) or _hardly_any_noise(merged):
        return bound
    return min(bound, _composed(merged, relation, lambda part: part.delta(epsilon)))


def _merge(events: Sequence[Event]) -> tuple[Event, ...]:
    """Drop what releases nothing, turn rate 1 into plain Gaussians, and add up equal events."""
    replace_squares: list[float] = []
    withhold_squares: list[float] = []
    sampled: dict[tuple[float, float, str], int] = {}
    responses: dict[tuple[float, int], int] = {}
    for event in events:
        if isinstance(event, GaussianEvent):
            replace_squares.append(event.count * (event.replace * event.replace))
            withhold_squares.append(event.count * (event.withhold * event.withhold))
        elif isinstance(event, PoissonGaussianEvent):
            if event.rate == 1:
                step, alone = _replace_mu(event), 1 / event.noise_multiplier
                replace_squares.append(event.steps * (step * step))
                withhold_squares.append(event.steps * (alone * alone))
            elif event.rate > 0 and event.steps > 0:
                key = (event.noise_multiplier, event.rate, event.contribution)
                sampled[key] = sampled.get(key, 0) + event.steps
        elif event.epsilon > 0 and event.count > 0:
            choice = (event.epsilon, event.categories)
            responses[choice] = responses.get(choice, 0) + event.count
    merged: list[Event] = []
    # Exact sums: neither the order of the events nor the rounding of many small ones matters.
    replace, withhold = math.fsum(replace_squares), math.fsum(withhold_squares)
    if not (math.isfinite(replace) and math.isfinite(withhold)):
        raise AccountingError("These releases have hardly any noise: epsilon would be infinite.")
    if replace > 0 or withhold > 0:
        merged.append(
            GaussianEvent(
                replace=math.sqrt(replace) * (1 + _ROUNDING),
                withhold=math.sqrt(withhold) * (1 + _ROUNDING),
            )
        )
    for (noise, rate, contribution), steps in sorted(sampled.items()):
        merged.append(
            PoissonGaussianEvent(
                noise_multiplier=noise,
                rate=rate,
                steps=steps,
                contribution="label" if contribution == "label" else "general",
            )
        )
    for (answer, categories), count in sorted(responses.items()):
        merged.append(RandomizedResponseEvent(epsilon=answer, categories=categories, count=count))
    return tuple(merged)


def _replace_mu(event: PoissonGaussianEvent) -> float:
    """Sensitivity to noise of one unsampled step: 2C/σ, or √2·C/σ for orthogonal contributions."""
    return (math.sqrt(2) if event.contribution == "label" else 2.0) / event.noise_multiplier


def _without_sampling(merged: tuple[Event, ...], relation: Relation) -> tuple[float, float]:
    """mu of all Gaussians as if every row took part in every step, and the pure epsilon."""
    square = pure = 0.0
    for event in merged:
        if isinstance(event, GaussianEvent):
            mu = getattr(event, relation)
            square += event.count * (mu * mu)
        elif isinstance(event, PoissonGaussianEvent):
            mu = _replace_mu(event) if relation == "replace" else 1 / event.noise_multiplier
            square += event.steps * (mu * mu)
        else:
            pure += event.count * event.epsilon
    return math.sqrt(square), pure


def _total_variation(merged: tuple[Event, ...], relation: Relation) -> float:
    """A bound on delta at epsilon 0: total variations add up, sampling multiplies by its rate."""
    total = 0.0
    for event in merged:
        if isinstance(event, GaussianEvent):
            total += gaussian_delta(getattr(event, relation) * math.sqrt(event.count), 0.0)
        elif isinstance(event, PoissonGaussianEvent):
            mu = _replace_mu(event) if relation == "replace" else 1 / event.noise_multiplier
            total += event.steps * event.rate * gaussian_delta(mu, 0.0)
        else:
            others = (event.categories - 1) * math.exp(-event.epsilon)
            total += event.count * -math.expm1(-event.epsilon) / (1 + others)
    return total


def _closed_form(merged: tuple[Event, ...]) -> bool:
    return all(isinstance(event, GaussianEvent) for event in merged)


def _hardly_any_noise(merged: tuple[Event, ...]) -> bool:
    """Whether epsilon is in the thousands anyway, where no grid is both fine and wide enough."""
    return any(
        isinstance(event, PoissonGaussianEvent) and event.noise_multiplier < 1e-3
        for event in merged
    )


@lru_cache(maxsize=256)
def _epsilon(merged: tuple[Event, ...], delta: float, relation: Relation) -> float:
    if not _closed_form(merged) and _total_variation(merged, relation) <= delta:
        return 0.0
    mu, pure = _without_sampling(merged, relation)
    bound = gaussian_epsilon(mu, delta) + pure
    if _closed_form(merged) or _hardly_any_noise(merged):
        return bound
    found = min(bound, _composed(merged, relation, lambda part: part.epsilon(delta)))
    if len(merged) > 1 and any(isinstance(event, RandomizedResponseEvent) for event in merged):
        # The loss of answers ends at epsilon, and has no tail in which the others' would drown: on
        # a grid wide enough for both, small others are rounded up to several times their cost.
        share = math.nextafter(delta / len(merged), 0.0)
        found = min(found, math.fsum(_epsilon((event,), share, relation) for event in merged))
    return found


def _composed(
    merged: tuple[Event, ...], relation: Relation, answer: Callable[[Composition], float]
) -> float:
    """The worst answer over the directions; replacement is symmetric, withholding is not."""
    from halfmask.accounting.composition import GridTooFineError
    from halfmask.accounting.loss_distributions import grid_interval

    directions: tuple[Direction, ...] = ("replace",) if relation == "replace" else ("remove", "add")
    interval = max(grid_interval(_spreads(merged, relation, side)) for side in directions)
    for _ in range(8):
        try:
            return max(
                answer(_composition(merged, relation, side, interval)) for side in directions
            )
        except GridTooFineError:
            interval *= 4
    raise AccountingError(
        "The privacy loss of these events is spread too widely to be composed: "
        "use fewer steps, more noise or a larger delta."
    )


def _gaussians(
    merged: tuple[Event, ...], relation: Relation, direction: Direction
) -> list[tuple[float, float, int, Direction]]:
    """(noise, rate, count, direction) of each Gaussian part, sampled or not, at sensitivity 1."""
    gaussians: list[tuple[float, float, int, Direction]] = []
    for event in merged:
        if isinstance(event, PoissonGaussianEvent):
            orthogonal = relation == "replace" and event.contribution == "label"
            sides: tuple[Direction, ...] = ("remove", "add") if orthogonal else (direction,)
            gaussians += [(event.noise_multiplier, event.rate, event.steps, s) for s in sides]
        elif isinstance(event, GaussianEvent):
            mu = getattr(event, relation)
            if mu > 0:
                gaussians.append((1 / mu, 1.0, event.count, "remove"))
    return gaussians


def _spreads(
    merged: tuple[Event, ...], relation: Relation, direction: Direction
) -> list[tuple[float, float, int]]:
    from halfmask.accounting.loss_distributions import loss_moments

    parts = _gaussians(merged, relation, direction)
    spreads = [(*loss_moments(noise, rate, side), count) for noise, rate, count, side in parts]
    return spreads + [
        (event.epsilon, event.epsilon, event.count)
        for event in merged
        if isinstance(event, RandomizedResponseEvent)
    ]


def _composition(
    merged: tuple[Event, ...], relation: Relation, direction: Direction, interval: float
) -> Composition:
    from halfmask.accounting.composition import Composition
    from halfmask.accounting.loss_distributions import gaussian_losses, randomized_response_losses

    parts = [
        gaussian_losses(noise=noise, rate=rate, count=count, direction=side, interval=interval)
        for noise, rate, count, side in _gaussians(merged, relation, direction)
    ]
    parts += [
        randomized_response_losses(
            epsilon=event.epsilon, categories=event.categories, count=event.count, interval=interval
        )
        for event in merged
        if isinstance(event, RandomizedResponseEvent)
    ]
    return Composition(parts)
