"""A linear model from noisy second moments: public part first, private part on what is left.

The ridge strength of either part is chosen by marginal likelihood. When the noise drowns the
private moments their coefficients shrink to zero, and the model of the public columns remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halfmask.methods.evidence import Ridge, evidence_ridge
from halfmask.methods.released_moments import Moments


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentFit:
    """Coefficients for the public and the private part, and what they were made from.

    `alone` is the ridge of the label on the public part only, `regression` (public x private) that
    of the private part on the public one.
    """

    public: np.ndarray
    private: np.ndarray
    alone: Ridge
    regression: np.ndarray
    private_prior: float


def solve_moments(moments: Moments, *, private_norm: float, label_scale: float) -> MomentFit:
    """Ridge regression of the coded label on [public | private]; ‖private‖ ≤ `private_norm`."""
    first = evidence_ridge(
        moments.public_public,
        moments.public_label,
        rows=moments.rows,
        statistic_variance=moments.public_label_variance,
        label_scale=label_scale,
    )
    width = max(moments.private_private.shape[0], 1)
    onto = evidence_ridge(
        moments.public_public,
        moments.public_private,
        rows=moments.rows,
        statistic_variance=moments.public_private_variance,
        label_scale=private_norm**2 / width,
    )
    regression = onto.coef
    # The second moment of what the public part leaves of the private one, whatever its regression.
    crossed = regression.T @ moments.public_private
    left = (
        moments.private_private
        - crossed
        - crossed.T
        + regression.T @ moments.public_public @ regression
    )
    explained = float((first.coef**2).sum(axis=0).mean())
    spread = float((regression**2).sum(axis=0).mean()) if regression.size else 0.0
    second = evidence_ridge(
        left,
        moments.private_label
        - regression.T @ moments.public_label
        - (moments.public_private - moments.public_public @ regression).T @ first.coef,
        rows=moments.rows,
        statistic_variance=moments.private_label_variance
        + moments.public_private_variance * explained
        + moments.public_label_variance * spread,
        gram_variance=moments.private_private_variance
        + 2 * moments.public_private_variance * spread,
        row_square=private_norm**2,
        label_scale=label_scale,
    )
    public = first.coef - regression @ second.coef
    return MomentFit(
        public=public,
        private=second.coef,
        alone=first,
        regression=regression,
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
