"""Ridge regression from moments, as strong as the marginal likelihood of the release says.

The statistic is S = Gw + label noise + release noise, with w ~ N(0, τ·I). In the eigenbasis of G
its coordinates are independent, with variance τ·(L² + moment noise) + s²·L + release noise: τ and
s² are those which make the released S most likely. Nothing but S, G and the size of the noise is
read, so the choice is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_PRIOR_STEPS = 61
_LABEL_VARIANCES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
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
    statistic_variance: float,
    gram_variance: float = 0.0,
    label_scale: float = 1.0,
) -> Ridge:
    """Coefficients (width x targets) for `statistic` ≈ `gram` @ w.

    `statistic_variance` and `gram_variance` are the variances of the noise on each entry;
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
    lowest = 1e-4 * label_scale / (values**2).sum() * values.sum()
    priors = np.geomspace(lowest, 1e12 * lowest, _PRIOR_STEPS)[:, None, None]
    labels = label_scale * np.asarray(_LABEL_VARIANCES)[None, :, None]
    moment_noise = gram_variance * len(values)
    variance = priors * (values**2 + moment_noise) + labels * values + statistic_variance
    fit = targets * np.log(variance).sum(axis=2) + (power / variance).sum(axis=2)
    best = np.unravel_index(int(fit.argmin()), fit.shape)
    prior, label = float(priors[best[0], 0, 0]), float(labels[0, best[1], 0])
    penalty = (label + (statistic_variance + prior * moment_noise) / values) / prior
    coef = vectors @ (energy / (values + penalty)[:, None])
    return Ridge(
        coef=coef,
        basis=vectors,
        eigenvalues=values,
        penalty=penalty,
        prior=prior,
        label_variance=label,
    )
