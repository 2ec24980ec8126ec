"""`gd` with a private label and some public features: fit those first, then descend on all.

Of the public features only their sums by label are private: one release, and the best model of the
label by public features follows for free (`one-shot`). Noisy descent starts there. It learns the
private features' weights and corrects the public ones, which need little room for that: rows are
shorter than those of a descent from zero, and so its noise is smaller.
Guarantee: docs/proofs/gd.md, "Public start".
"""

from __future__ import annotations

from dataclasses import replace

from halfmask.losses import default_loss, loss_named
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import rows_in_all
from halfmask.methods.coded_rows import feature_rows
from halfmask.methods.fitted import LinearFit
from halfmask.methods.gd import Descent, GdConfig, coded_targets
from halfmask.methods.one_shot import OneShotConfig, plan_one_shot
from halfmask.methods.unit_rows import unit_rows, weighed_by_unit
from halfmask.row_products import times
from halfmask.table import Table


def fit_from_public_start(table: Table, releaser: Releaser, config: GdConfig) -> LinearFit:
    """Two stages whose releases compose to the releaser's budget. Guarantee: docs/proofs/gd.md.

    Both are opened before the first one releases, so that they are one charge.
    """
    budget = releaser.budget
    share = public_share(table, budget.mu, rows_in_all(table.n, releaser.shards))
    first, second = budget.split(share)
    fit_start = plan_one_shot(only_public(table), releaser, first, OneShotConfig())
    classes = 0 if table.classes is None else len(table.classes)
    loss = loss_named(default_loss(classes), classes=classes)
    middle, half = 0.0, 1.0
    if table.label_bounds is not None and table.classes is None:
        low, high = table.label_bounds
        middle, half = (low + high) / 2, (high - low) / 2
    rows = weighed_by_unit(
        unit_rows(table, precondition=config.precondition, shards=releaser.shards, started=True),
        table,
        outputs=loss.outputs,
        mu=second.mu,
        relation=releaser.relation,
    )
    descent = Descent(
        rows,
        coded_targets(table, loss),
        loss,
        config,
        True,
        releaser,
        second.mu,
        skipped=table.skipped,
    )
    start = fit_start()
    descent.start_from(
        (times(feature_rows(table, private=False), start.coef.T) + start.intercept - middle) / half
    )
    coef, intercept = rows.unfold(descent.run(None))
    coef *= half
    coef[:, : table.widths[0]] += start.coef
    return LinearFit(
        coef=coef,
        intercept=start.intercept + intercept * half,
        details={**descent.details, "public_start_share": share, "public_start": start.details},
    )


def public_share(table: Table, mu: float, rows: int) -> float:
    """The share of mu² for the public start, from declarations and sizes alone.

    At most that of public columns, the label counted as one. Less where noise hardly limits the
    descent, which then finds by itself what the start would have told it: a descent to the end
    moves the score of a unit row by about 4d/(μn), the gradient's noise over a curvature of 1/(4d).
    """
    features = sum(table.widths)
    limited = min(1.0, 4 * features / (mu * rows))
    if table.schema is None:
        return limited / 3
    return limited * len(table.schema.public) / (len(table.schema.columns) + 1)


def only_public(table: Table) -> Table:
    """`table` without its private features; the label stays private."""
    return replace(
        table,
        features=table.features.only_public(),
        private_norm=0.0,
        private_names=(),
        private_sources=(),
    )
