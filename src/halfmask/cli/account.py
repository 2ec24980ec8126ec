"""`halfmask account`: the missing one of epsilon, noise and steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.relations import PAIRS
from halfmask.cli.output import emit, json_option
from halfmask.errors import InputError

if TYPE_CHECKING:
    from halfmask.accounting.events import Contribution
    from halfmask.accounting.relations import Relation


@click.command()
@click.option(
    "--q", default=1.0, show_default=True, help="Sampling rate of a row; 1 uses all rows."
)
@click.option("--noise", type=float, help="Noise multiplier: noise std / clip norm.")
@click.option("--steps", type=int, help="Number of releases.")
@click.option("--epsilon", type=float, help="Leave out --noise (or --steps) to find it.")
@click.option("--delta", type=float, required=True, help="Between 0 and 1, well below 1/rows.")
@click.option(
    "--relation",
    type=click.Choice(PAIRS),
    default="replace",
    show_default=True,
    help="What may differ: a row's private part replaced or withheld, or a private label whose "
    "contributions are orthogonal.",
)
@json_option
def account(
    *,
    q: float,
    noise: float | None,
    steps: int | None,
    epsilon: float | None,
    delta: float,
    relation: str,
    as_json: bool,
) -> None:
    """The missing one of epsilon, noise and steps, of Gaussian steps on Poisson-sampled rows.

    \b
    halfmask account --q 0.0625 --noise 1 --steps 160 --delta 1e-5     epsilon
    halfmask account --q 0.0625 --epsilon 1 --steps 160 --delta 1e-5   noise multiplier
    halfmask account --q 0.0625 --epsilon 1 --noise 1 --delta 1e-5     most steps
    """
    _check(q=q, noise=noise, steps=steps, epsilon=epsilon, delta=delta)
    from halfmask.accounting import accountant
    from halfmask.accounting.events import PoissonGaussianEvent

    under: Relation = "withhold" if relation == "withhold" else "replace"
    contribution: Contribution = "label" if relation == "label" else "general"

    def spent(noise: float, steps: int) -> float:
        event = PoissonGaussianEvent(
            noise_multiplier=noise, rate=q, steps=steps, contribution=contribution
        )
        return accountant.epsilon([event], delta=delta, relation=under)

    if noise is None:
        from halfmask.accounting.calibrate import noise_multiplier

        assert epsilon is not None
        assert steps is not None
        noise = noise_multiplier(
            Budget(epsilon=epsilon, delta=delta, relation=under),
            rate=q,
            steps=steps,
            contribution=contribution,
        )
    elif steps is None:
        from halfmask.accounting.calibrate import most_steps

        assert epsilon is not None
        steps = most_steps(
            Budget(epsilon=epsilon, delta=delta, relation=under),
            rate=q,
            noise_multiplier=noise,
            contribution=contribution,
        )
        if steps == 0:
            raise InputError(
                f"Not even one step with noise {noise:g} stays within epsilon {printed(epsilon)}. "
                "Give a larger --noise or --epsilon."
            )
    accounted = spent(noise, steps)
    claimed = accounted if epsilon is None else epsilon
    data = {
        "epsilon": claimed,
        "delta": delta,
        "relation": relation,
        "noise_multiplier": noise,
        "q": q,
        "steps": steps,
        "accounted_epsilon": accounted,
        "holds_for": _HOLDS_FOR[relation],
    }
    rows = "all rows" if q == 1 else f"rows sampled at rate {q:g}"
    text = (
        f"epsilon {printed(claimed)} at delta {delta:g} ({relation}): {steps} steps on {rows}, "
        f"noise multiplier {noise:.6g}"
    )
    emit(data, f"{text}\nIt holds for {_HOLDS_FOR[relation]}.", as_json)


_HOLDS_FOR = {
    "replace": "every public function f of a row: differential privacy under replacement is "
    "feature differential privacy for all of them (Proposition 2.3 of the feature-DP paper)",
    "withhold": "every public function f of a row whose private part is withheld, not replaced",
    "label": "f(x, y) = x alone: public features and contributions of labels that are orthogonal",
}


def _check(
    *, q: float, noise: float | None, steps: int | None, epsilon: float | None, delta: float
) -> None:
    if not 0 < q <= 1:
        raise InputError(
            f"Expected --q in (0, 1], got {q:g}. It is the rate at which rows are drawn."
        )
    if not 0 < delta < 1:
        raise InputError(
            f"Expected --delta strictly between 0 and 1, got {delta:g}. Take one well below 1/rows."
        )
    for name, value in (("--noise", noise), ("--epsilon", epsilon)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"Expected a finite {name} > 0, got {value:g}.")
    if steps is not None and steps < 1:
        raise InputError(f"Expected --steps >= 1, got {steps}.")
    given = [name for name, value in _named(noise, steps, epsilon) if value is not None]
    if len(given) != 2:
        found = " and ".join(given) or "none of them"
        raise InputError(
            f"Give two of --noise, --steps and --epsilon to find the third; got {found}."
        )


def _named(
    noise: float | None, steps: int | None, epsilon: float | None
) -> tuple[tuple[str, float | None], ...]:
    return ("--noise", noise), ("--steps", steps), ("--epsilon", epsilon)
