"""Ridge regression from moments, as strong as the marginal likelihood of the release says.

The statistic is S = Gw + label noise + release noise, with w ~ N(0, τ·I). In the eigenbasis of G
its coordinates are independent, with variance τ·(L² + moment noise) + s²·L + release noise: τ and
s² are weighed by how likely they make the released S. Nothing but S, G and the size of the noise is
read, so the choice is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_PRIOR_STEPS = 49
_HIGHEST = 1.0
# Bounds of a number are often far wider than its values, so the prior's range reaches far down.
_LOWEST = 1e-9
_UNEXPLAINED = (99.0, 9.0, 2.3, 1.0, 0.43, 0.11)
"""Variance of the label that the features leave, over what they explain: 1% to 90% explained."""
_LOST = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Ridge:
    """The posterior mean of the coefficients, and the penalty matrix that gives it.

    `coef` solves (G + penalty)·w = S on the directions in `basis`; it is 0 on all others.
    """

    coef: np.ndarray
    basis: np.ndarray
    eigenvalues: np.ndarray
    penalty: np.ndarray
    prior: float
    label_variance: float


def evidence_ridge(
    gram: np.ndarray,
    statistic: np.ndarray,
    *,
    rows: float,
    statistic_variance: float,
    gram_variance: float = 0.0,
    row_square: float = 0.0,
    label_scale: float = 1.0,
) -> Ridge:
    """Coefficients (width x targets) for `statistic` ≈ `gram` @ w.

    `gram` is a sum over `rows` rows (or their total weight), each of mean square `row_square` where
    noise hides it. `statistic_variance` and `gram_variance` are those of the noise on an entry;
    `label_scale` is the variance of a label that nothing explains.
    """
    width, targets = statistic.shape
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    # A noisy Gram matrix can have negative eigenvalues; a real one cannot.
    kept = values > _LOST * max(float(values.max(initial=0.0)), _LOST)
    values, vectors = values[kept], vectors[:, kept]
    if not values.size:
        empty = np.zeros((width, targets))
        return Ridge(
            coef=empty, basis=vectors, eigenvalues=values, penalty=values, prior=0.0,
            label_variance=label_scale,
        )  # fmt: skip
    energy = vectors.T @ statistic
    power = (energy**2).sum(axis=1)
    # Scores with this prior vary as much as labels do; a prior far above it can only be noise.
    full = label_scale * rows / max(float(values.sum()), rows * row_square)
    priors = (full * np.geomspace(_LOWEST, _HIGHEST, _PRIOR_STEPS))[:, None, None]
    # τ and s² cannot be told apart by S where all eigenvalues are alike; their ratio has a range.
    explained = priors * (float(values.sum()) / rows)
    labels = np.minimum(explained * np.asarray(_UNEXPLAINED)[None, :, None], label_scale)
    moment_noise = gram_variance * len(values)
    variance = priors * (values**2 + moment_noise) + labels * values + statistic_variance
    fit = targets * np.log(variance).sum(axis=2) + (power / variance).sum(axis=2)
    likely = np.exp((fit.min() - fit) / 2)[:, :, None]
    likely /= likely.sum()
    # The mean over all strengths, weighted by likelihood: a release that cannot tell them apart is
    # not taken for the one that happens to fit best.
    shrink = (likely * (priors * values / variance)).sum(axis=(0, 1))
    penalty = 1 / shrink - values
    return Ridge(
        coef=vectors @ (shrink[:, None] * energy),
        basis=vectors,
        eigenvalues=values,
        penalty=np.maximum(penalty, 0.0),
        prior=float(np.exp((likely * np.log(priors)).sum())),
        label_variance=float((likely * labels).sum()),
    )
