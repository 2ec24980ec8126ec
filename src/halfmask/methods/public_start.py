"""`gd` with a private label and some public features: fit those first, then descend on the rest.

Of the public features only their sums by label are private: one release, and the best model of the
label by public features follows for free (`one-shot`). Noisy descent then moves the private
features' weights, with the public model's scores as a known offset and as one feature more. Its
rows are shorter than those of a joint descent, and so its noise is smaller.
Guarantee: docs/proofs/gd.md, "Public start".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.losses import default_loss, loss_named
from halfmask.mechanisms.release import Releaser
from halfmask.methods.fitted import LinearFit
from halfmask.methods.gd import Descent, GdConfig, coded_targets
from halfmask.methods.one_shot import fit_one_shot
from halfmask.methods.unit_rows import UnitRows, unit_rows
from halfmask.table import Table

Floats = NDArray[np.float64]

# Relative reserve for the rounding of calibrated noise.
_ROUNDING = 1e-9
# Public scores beyond this are as good as certain.
_LOG_ODDS = 3.0


def fit_from_public_start(
    table: Table, releaser: Releaser, *, epsilon: float, delta: float, config: GdConfig
) -> LinearFit:
    """Two stages whose releases compose to (epsilon, delta). Guarantee: docs/proofs/gd.md."""
    share = public_share(table)
    mu = gaussian_mu(epsilon, delta) * (1 - _ROUNDING)
    first = gaussian_epsilon(math.sqrt(share) * mu, delta)
    start = fit_one_shot(only_public(table), releaser, epsilon=first, delta=delta)
    loss = loss_named(
        default_loss(0 if table.classes is None else len(table.classes)),
        classes=0 if table.classes is None else len(table.classes),
    )
    middle, half = 0.0, 1.0
    if table.label_bounds is not None and table.classes is None:
        low, high = table.label_bounds
        middle, half = (low + high) / 2, (high - low) / 2
    offset = (table.public @ start.coef.T + start.intercept - middle) / half
    rows = unit_rows(only_private(table), precondition=config.precondition, shards=releaser.shards)
    reach = _LOG_ODDS if table.classes is not None else 1.0
    extended, shrunk, unit = _with_offset(rows, offset, reach, table.private_norm)
    mu_left = math.sqrt(1 - share) * mu
    targets = coded_targets(table, loss)
    descent = Descent(extended, targets, loss, config, True, releaser, mu_left)
    theta = descent.run(None)
    coef, intercept = rows.unfold(theta[: rows.d] * shrunk)
    # What the descent makes of the public scores: as they are, plus a learnt multiple of them.
    kept = np.eye(offset.shape[1]) + unit * theta[rows.d :]
    shifted = kept.T @ (start.intercept - middle)
    return LinearFit(
        coef=np.hstack([kept.T @ start.coef, coef * half]),
        intercept=shifted + middle + intercept * half,
        details={**descent.details, "public_start_share": share, "public_start": start.details},
    )


def _with_offset(
    rows: UnitRows, offset: Floats, reach: float, private_norm: float
) -> tuple[UnitRows, float, float]:
    """`rows` with the offset's scores as one more column's worth of features.

    Clipped to ±`reach` they weigh as much as one private column, and the whole row keeps norm 1.
    Returned with the factors that were applied to the rows and to the scores.
    """
    outputs = offset.shape[1]
    shrunk = private_norm / math.hypot(private_norm, 1.0)
    unit = 1 / (math.hypot(private_norm, 1.0) * reach * math.sqrt(outputs))
    feature = unit * np.clip(offset, -reach, reach)
    scaled = rows.matrix * shrunk
    if sparse.issparse(scaled):
        matrix: Any = sparse.csr_array(sparse.hstack([scaled, feature]))
    else:
        matrix = np.hstack([scaled, feature])
    centre = np.concatenate([rows.centre * shrunk, np.zeros(outputs)])
    return replace(rows, matrix=matrix, centre=centre, offset=offset), shrunk, unit


def public_share(table: Table) -> float:
    """The share of mu² for the public start: that of public columns, from declarations alone."""
    if table.schema is None:
        return 0.5
    public = len(table.schema.public)
    return public / (public + len(table.schema.private))


def only_public(table: Table) -> Table:
    """`table` without its private features; the label stays private."""
    return replace(
        table,
        private=np.zeros((table.n, 0)),
        private_norm=0.0,
        private_names=(),
        private_sources=(),
    )


def only_private(table: Table) -> Table:
    """`table` without its public features."""
    return replace(
        table, public=np.zeros((table.n, 0)), public_norm=0.0, public_names=(), public_sources=()
    )
