"""What to expect before any data is touched: method, noise, steps, error, and rows that are needed.

Errors are bounds on the excess empirical risk (see methods.bounds) for rows of norm at most 1,
their constant included, and coefficients in the unit ball: a scale on which problems can be
compared. The method comes from the same rule that training uses.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Relation
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import InputError
from halfmask.losses import Loss, Softmax, default_loss, loss_named
from halfmask.methods import bounds
from halfmask.methods.auto import Choice, Problem, choose
from halfmask.methods.label_span import LabelSpanConfig, budget_shares

PLANNED_METHODS = ("auto", "one-shot", "gd", "sgd", "dp-sgd", "label-span")
_LABELS_ONLY = ("one-shot", "label-span")
_RADIUS = 1.0
_MOST_STEPS = 100_000
_MOST_SAMPLED_STEPS = 400
_LEAST_BATCH = 1024
_HUGE = 10**14
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The public facts of a training run; `columns` counts encoded features, `public` of them."""

    rows: int
    columns: int
    epsilon: float
    delta: float
    relation: Relation = "replace"
    classes: int = 2
    public: int = 0
    label_private: bool = True

    def __post_init__(self) -> None:
        _ = self.budget  # refuses what is none
        if self.rows < 1:
            raise InputError(f"Expected at least one row, got {self.rows}.")
        if self.columns < 1:
            raise InputError(f"Expected at least one column, got {self.columns}.")
        if not 0 <= self.public <= self.columns:
            raise InputError(
                f"Expected between 0 and {self.columns} public columns, got {self.public}."
            )
        if self.classes < 0 or self.classes == 1:
            raise InputError(
                f"Expected 2 classes or more, or 0 for a number to predict, got {self.classes}."
            )

    @property
    def budget(self) -> Budget:
        """What may be spent."""
        return Budget(epsilon=self.epsilon, delta=self.delta, relation=self.relation)

    @property
    def loss(self) -> Loss:
        """The loss that methods use by default."""
        return loss_named(default_loss(self.classes), classes=self.classes)

    @property
    def parameters(self) -> int:
        """Coefficients of a linear model, the constants included."""
        return self.loss.outputs * (self.columns + 1)

    @property
    def labels_only(self) -> bool:
        """Whether nothing but the label is private."""
        return self.label_private and self.public == self.columns

    @property
    def gradient_bound(self) -> float:
        """The longest gradient of a row of norm 1 in the unit ball."""
        return self.loss.slope_bound(_RADIUS)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The answer; `noise_multiplier` is noise std over the longest contribution of a row.

    `numbers_of` is the method whose noise, steps and error are given: `method` itself, or gd where
    that has no closed form.
    """

    method: str
    numbers_of: str
    reason: str
    noise_multiplier: float
    steps: int
    rate: float
    error_bound: float
    target_error: float
    rows_needed: int
    table: tuple[dict[str, float | int], ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {**asdict(self), "table": list(self.table)}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a method would do with so many rows, and the bound on its error."""

    noise_multiplier: float
    steps: int
    rate: float
    error: float


def plan_run(facts: RunFacts, *, target_error: float = 0.01, method: str = "auto") -> RunPlan:
    """Choose a method for `facts` and say what it needs and reaches."""
    bounds.check_error(target_error)
    name, reason = _method(facts, method)
    known = name in PLANNED_METHODS and (facts.labels_only or name not in _LABELS_ONLY)
    numbers_of = name if known else "gd"
    run = expected_run(facts, numbers_of)

    def error(rows: int, epsilon: float) -> float:
        other = replace(facts, rows=rows, epsilon=epsilon)
        return expected_run(other, numbers_of, like=facts).error

    budgets = [facts.epsilon * factor for factor in _FACTORS]
    sizes = [max(1, round(facts.rows * factor)) for factor in _FACTORS]
    return RunPlan(
        method=name,
        numbers_of=numbers_of,
        reason=reason,
        noise_multiplier=run.noise_multiplier,
        steps=run.steps,
        rate=run.rate,
        error_bound=run.error,
        target_error=target_error,
        rows_needed=bounds.rows_for_error(lambda n: error(n, facts.epsilon), target_error),
        table=tuple(
            {"rows": n, "epsilon": epsilon, "error_bound": error(n, epsilon)}
            for epsilon in budgets
            for n in sizes
        ),
    )


def lecture_plan(facts: RunFacts, *, target_error: float) -> dict[str, Any]:
    """Theorem 1 of the lecture with its constants: noise, steps and error at `facts.rows`, and the
    rows and steps that bring its bound to `target_error`.

    C is the loss's own Lipschitz constant (its largest slope in the ball, where it has none), as in
    the lecture: everything is private, rows have norm at most 1, coefficients lie in the unit ball.
    """
    from halfmask.methods.gd import balanced_steps, slope_bound

    constant = slope_bound(facts.loss, _RADIUS)
    reach = constant * (2.0 if facts.relation == "replace" else 1.0)
    mu = facts.budget.mu
    common = {"radius": _RADIUS, "lipschitz": constant}
    budget = {"mu": mu, "sensitivity": reach}
    steps = balanced_steps(
        rows=facts.rows, weights=facts.parameters, lipschitz=constant, reach=reach, mu=mu
    )

    def error(count: int) -> float:
        return bounds.excess_of_lecture(
            **common, parameters=facts.parameters, rows=facts.rows, steps=count, **budget
        )

    # Where each of k steps is made (ε/k, δ/k)-DP on its own: simple composition.
    k = max(steps - 1, 1)
    naive = reach / gaussian_mu(facts.epsilon / k, facts.delta / k) / constant
    return {
        "method": "gd",
        "numbers_of": "gd",
        "bound": "lecture",
        "reason": "Theorem 1 of the lecture was asked for",
        "noise_multiplier": reach * math.sqrt(steps - 1) / mu / constant,
        "noise_multiplier_naive": naive,
        "steps": steps,
        "rate": 1.0,
        "error_bound": error(steps),
        "error_without_noise": _RADIUS * constant / math.sqrt(steps),
        "target_error": target_error,
        "rows_needed": bounds.rows_of_lecture(
            **common, parameters=facts.parameters, error=target_error, **budget
        ),
        "steps_needed": bounds.steps_of_lecture(**common, error=target_error),
        # The lecture gives each of its two terms α/2: T = 4(RC/α)² and n = 4RCσ√d/α.
        "rows_as_written": bounds.rows_of_lecture(
            **common, parameters=2 * facts.parameters, error=target_error, **budget
        ),
        "steps_as_written": 2 * bounds.steps_of_lecture(**common, error=target_error),
    }


def paper_plan(facts: RunFacts, *, target_error: float) -> dict[str, Any]:
    """Theorems 2.1 and 2.4 of the feature-DP paper, corrected, for Algorithm 1 with m' = |D|.

    `noise_of_theorem_2_1` is the paper's order of magnitude with c = 1; the noise that is used, and
    that enters the error, is the accountant's. Where the label alone is private, `crossover` says
    from how many rows on sums over the table have a lower bound than one label at a time
    (`label-span`), as far as steps can bring both, beside the paper's √(d/K), d counting weights.
    """
    bounds.check_error(target_error)
    split = facts.labels_only
    clip, orthogonal = _longest_contribution(facts, split)
    # With equal public parts imposed, two labels' contributions are orthogonal.
    pair = clip * (math.sqrt(2) if orthogonal else 2.0 if facts.relation == "replace" else 1.0)
    run = expected_run(facts, "sgd")

    def std(rows: int) -> float:
        return bounds.noise_on_mean(
            noise_multiplier=run.noise_multiplier, clip_norm=clip, rate=run.rate, rows=rows
        )

    def error(rows: int) -> float:
        moment = bounds.second_moment(
            lipschitz=facts.gradient_bound, private_lipschitz=clip, rate=run.rate, rows=rows
        )
        shape: dict[str, Any] = {
            "radius": _RADIUS,
            "steps": run.steps,
            "second_moment": moment,
            "parameters": facts.parameters,
            "noise_std": std(rows),
        }
        rate = bounds.best_learning_rate(**shape)
        found = bounds.excess_of_theorem_2_4(**shape, learning_rate=rate)
        return min(found, 2 * _RADIUS * facts.gradient_bound)

    crossover: dict[str, float] | None = None
    if split and facts.classes > 1:

        def ratio(rows: int) -> float:
            other = replace(facts, rows=rows)
            sums = bounds.excess_of_lecture(
                radius=_RADIUS,
                lipschitz=facts.gradient_bound,
                parameters=facts.parameters,
                rows=rows,
                steps=_MOST_STEPS,
                mu=facts.budget.mu,
                sensitivity=pair,
            )
            return sums / expected_run(other, "label-span").error

        crossover = {
            "claimed_rows": math.sqrt(facts.parameters / facts.classes),
            "rows": float(bounds.rows_for_error(ratio, 1.0)),
        }
    return {
        "method": "sgd",
        "numbers_of": "sgd",
        "bound": "paper",
        "reason": "Theorems 2.1 and 2.4 of the paper were asked for",
        "noise_multiplier": run.noise_multiplier,
        "noise_of_theorem_2_1": bounds.noise_of_theorem_2_1(
            pair_lipschitz=pair,
            rows=facts.rows,
            epsilon=facts.epsilon,
            delta=facts.delta,
            steps=run.steps,
        ),
        "noise_std": std(facts.rows),
        "private_lipschitz": clip,
        "pair_lipschitz": pair,
        "steps": run.steps,
        "rate": run.rate,
        "error_bound": error(facts.rows),
        "target_error": target_error,
        "rows_needed": bounds.rows_for_error(error, target_error)
        if error(_HUGE) <= target_error
        else None,
        "crossover": crossover,
    }


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """How `additive` will spend the budget: its `stages`, as a fit opens them.

    `noise_multiplier` and `steps` are those of its descent (1 and the base rate's noise where it
    has none); `rows_needed` is the least number of rows from which columns are learnt from at all.
    """

    method: str
    reason: str
    noise_multiplier: float
    steps: int
    rows_needed: int
    base_rate_only: bool
    stages: tuple[dict[str, Any], ...]
    error_bound: None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {**asdict(self), "stages": list(self.stages)}


def table_plan(facts: RunFacts, *, rows: float, reason: str) -> TablePlan:
    """The plan of `additive` on `rows` rows, a unit counted as one; columns are the table's own.

    `rows` may be less than `facts.rows`, where a unit has several (see `additive.row_weights`).
    """
    from halfmask.accounting.gaussian import gaussian_epsilon
    from halfmask.methods.additive import AdditivePlan

    if not facts.label_private and facts.public == facts.columns:
        raise InputError("No column is private: there is nothing to protect.")
    mu = facts.budget.mu
    private, number = facts.columns - facts.public, facts.classes == 0

    def made(count: float) -> AdditivePlan:
        return AdditivePlan.of(
            rows=count,
            private_columns=private,
            public_columns=facts.public,
            label_private=facts.label_private,
            number=number,
            mu=mu,
            several=facts.classes > 2,
        )

    def noise(share: float, releases: int) -> float:
        return math.sqrt(releases / share) / mu

    stages = made(rows).stages(private_columns=private, number=number)
    descent = next((each for each in stages if each.name == "descent"), stages[0])
    return TablePlan(
        method="additive",
        reason=reason,
        noise_multiplier=noise(descent.share, descent.releases),
        steps=descent.releases,
        rows_needed=bounds.rows_for_error(lambda n: float(made(n).steps == 0), 0.5),
        base_rate_only=made(rows).steps == 0,
        stages=tuple(
            {
                **asdict(each),
                "noise_multiplier": noise(each.share, each.releases),
                "epsilon_alone": gaussian_epsilon(math.sqrt(each.share) * mu, facts.delta),
            }
            for each in stages
        ),
    )


def expected_run(facts: RunFacts, method: str, *, like: RunFacts | None = None) -> Run:
    """Noise, steps and the bound of `method`; sampled methods keep the rate and steps of `like`."""
    if method in _LABELS_ONLY:
        run = _of_labels(facts, method)
    elif method == "gd":
        run = _of_whole_batches(facts)
    else:
        run = _of_sampled_batches(facts, method, like or facts)
    # Nothing in the ball is further than this from the best of it.
    return replace(run, error=min(run.error, 2 * _RADIUS * facts.gradient_bound))


def default_method(facts: RunFacts, *, levels: bool = False) -> Choice:
    """What training would choose for `facts`; `levels` as in `auto.Problem`."""
    return choose(
        Problem(
            public_columns=facts.public,
            private_columns=facts.columns - facts.public,
            label_private=facts.label_private,
            task="classification" if facts.classes else "regression",
            classes=facts.classes,
            levels=levels,
        )
    )


def _method(facts: RunFacts, asked: str) -> tuple[str, str]:
    if asked not in PLANNED_METHODS:
        raise InputError(f"Unknown method {asked!r}: expected one of {', '.join(PLANNED_METHODS)}.")
    if asked == "auto":
        choice = default_method(facts)
        if choice.method not in PLANNED_METHODS:
            return "gd", (
                f"no bound is known for {choice.method}, which training would use because "
                f"{choice.reason}; this plan is for gd"
            )
        return choice.method, choice.reason
    if asked in _LABELS_ONLY and not facts.labels_only:
        raise InputError(
            f"The error of {asked!r} has a closed form only where the label alone is private: "
            f"pass --public {facts.columns}, or plan for gd."
        )
    return asked, "asked for by name"


def _of_labels(facts: RunFacts, method: str) -> Run:
    apart, longest = facts.loss.fixed_bounds()
    moved = apart if facts.relation == "replace" else longest
    std = moved / facts.budget.mu
    if method == "one-shot":
        error = bounds.excess_of_one_release(
            radius=_RADIUS, parameters=facts.parameters, noise_std=std, rows=facts.rows
        )
        return Run(noise_multiplier=std, steps=1, rate=1.0, error=error)
    _, overhead = budget_shares(facts.rows, LabelSpanConfig(order="uniform"))
    error = bounds.excess_of_label_span(
        radius=_RADIUS,
        row_norm=1.0,
        slope_bound=facts.gradient_bound,
        directions=max(1, facts.loss.outputs - 1),
        noise_std=std,
        overhead=overhead,
        steps=facts.rows,
    )
    return Run(noise_multiplier=std, steps=facts.rows, rate=1 / facts.rows, error=error)


def _of_whole_batches(facts: RunFacts) -> Run:
    """Noisy gradient descent on all rows, its noise exact."""
    clip = facts.gradient_bound
    moved = (2 if facts.relation == "replace" else 1) * clip
    per_step = moved / (facts.rows * facts.budget.mu)
    steps, learning_rate = _schedule(facts, per_step)
    std = per_step * math.sqrt(steps)
    error = bounds.excess_if_smooth(
        distance=_RADIUS,
        steps=steps,
        learning_rate=learning_rate,
        smoothness=facts.loss.smoothness,
        variance=facts.parameters * std**2,
    )
    return Run(noise_multiplier=std * facts.rows / clip, steps=steps, rate=1.0, error=error)


def _of_sampled_batches(facts: RunFacts, method: str, like: RunFacts) -> Run:
    """Algorithm 1, or DP-SGD: noise from the accountant, the variance of both batches added."""
    split = method == "sgd" and facts.labels_only
    clip, orthogonal = _longest_contribution(facts, split)
    rate = min(1.0, max(_LEAST_BATCH, 4 * math.isqrt(like.rows)) / like.rows)
    pair = 2.0 if facts.relation == "replace" else 1.0
    guess = pair * clip / (like.rows * like.budget.mu)
    steps = min(_schedule(like, guess)[0], _MOST_SAMPLED_STEPS)
    noise = noise_multiplier(
        facts.budget,
        rate=rate,
        steps=steps,
        contribution="label" if orthogonal else "general",
    )
    std = bounds.noise_on_mean(noise_multiplier=noise, clip_norm=clip, rate=rate, rows=facts.rows)
    variance = facts.parameters * std**2 + bounds.sampling_variance(
        private_lipschitz=clip,
        rate=rate,
        rows=facts.rows,
        public_lipschitz=facts.loss.fixed_bounds()[1] if split else 0.0,
        public_batch=max(1, math.ceil(4 * rate * facts.rows)),
    )
    # The best step for this many steps and this variance, within what smoothness allows.
    learning_rate = min(1 / (2 * facts.loss.smoothness), _RADIUS / math.sqrt(2 * steps * variance))
    error = bounds.excess_if_smooth(
        distance=_RADIUS,
        steps=steps,
        learning_rate=learning_rate,
        smoothness=facts.loss.smoothness,
        variance=variance,
    )
    return Run(noise_multiplier=noise, steps=steps, rate=rate, error=error)


def _longest_contribution(facts: RunFacts, split: bool) -> tuple[float, bool]:
    """Of a row (of its label, if `split`) to a sampled sum; whether two labels' are orthogonal."""
    if not split:
        return facts.gradient_bound, False
    orthogonal = isinstance(facts.loss, Softmax) and facts.relation == "replace"
    return 1.0 if orthogonal else facts.loss.fixed_bounds()[1], orthogonal


def _schedule(facts: RunFacts, per_step: float) -> tuple[int, float]:
    """Steps and learning rate that balance distance and noise; `per_step` is the noise at T = 1.

    Only the product s of both matters once the rate is at most half of 1/smoothness:
    R²/(2s) + s·d·σ₁² is least at s = R/(σ₁√(2d)).
    """
    product = _RADIUS / (per_step * math.sqrt(2 * facts.parameters))
    steps = min(max(1, math.ceil(2 * facts.loss.smoothness * product)), _MOST_STEPS)
    return steps, min(product / steps, 1 / (2 * facts.loss.smoothness))
