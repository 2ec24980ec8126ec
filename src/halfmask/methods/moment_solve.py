"""A linear model from noisy second moments: public part first, private part on what is left.

The ridge strength of either part is chosen by marginal likelihood. When the noise drowns the
private moments their coefficients shrink to zero, and the model of the public columns remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halfmask.methods.evidence import evidence_ridge
from halfmask.methods.released_moments import Moments


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentFit:
    """Coefficients for the public and the private part, and the chosen strengths."""

    public: np.ndarray
    private: np.ndarray
    public_prior: float
    private_prior: float


def solve_moments(moments: Moments, *, label_scale: float) -> MomentFit:
    """Ridge regression of the coded label on [public | private]."""
    first = evidence_ridge(
        moments.public_public,
        moments.public_label,
        statistic_variance=moments.public_label_variance,
        label_scale=label_scale,
    )
    # (G_pp + penalty)⁻¹ on the directions that the public part has.
    inverse = (first.basis / (first.eigenvalues + first.penalty)) @ first.basis.T
    regression = inverse @ moments.public_private
    schur = moments.private_private - moments.public_private.T @ regression
    left = moments.private_label - regression.T @ moments.public_label
    explained = float((first.coef**2).sum(axis=0).mean()) if first.coef.size else 0.0
    spread = float((regression**2).sum(axis=0).mean()) if regression.size else 0.0
    second = evidence_ridge(
        schur,
        left,
        statistic_variance=moments.private_label_variance
        + moments.public_private_variance * explained
        + moments.public_label_variance * spread,
        gram_variance=moments.private_private_variance
        + 2 * moments.public_private_variance * spread,
        label_scale=first.label_variance,
    )
    public = inverse @ (moments.public_label - moments.public_private @ second.coef)
    return MomentFit(
        public=public,
        private=second.coef,
        public_prior=first.prior,
        private_prior=second.prior,
    )


def known_zeros(moment: np.ndarray, sources: tuple[str, ...]) -> np.ndarray:
    """The private second moment with the zeros that one-hot columns must have.

    Two levels of one column never occur together, whatever the noise says.
    """
    names = np.asarray(sources)
    same = names[:, None] == names[None, :]
    np.fill_diagonal(same, False)
    cleaned: np.ndarray = np.where(same, 0.0, moment)
    return cleaned
