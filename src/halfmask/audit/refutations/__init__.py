"""Unsound mechanisms, kept runnable so that the audit can be seen to catch them, with their cures.

Each name stands for two games: the mistake with the epsilon that is claimed for it, and its
corrected twin with the epsilon that is true. Nothing here is used by anything that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from halfmask.accounting.budget import Budget
from halfmask.audit.distinguish import Game
from halfmask.audit.refutations import certain, sampling, sensitivity

Make = Callable[[Budget], Game]


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """A mistake in one sentence, and the two games, made from the claim."""

    mistake: str
    unsound: Make
    corrected: Make


def _both(make: Callable[..., Game], mistake: str) -> Refutation:
    return Refutation(
        mistake=mistake,
        unsound=partial(make, corrected=False),
        corrected=partial(make, corrected=True),
    )


REFUTATIONS: dict[str, Refutation] = {
    "shared-batch": _both(
        sampling.shared_batch,
        "the public gradient is taken on the private batch, which it reveals, and amplification by "
        "sampling is claimed all the same",
    ),
    "lipschitz": _both(
        sampling.lipschitz,
        "noise is scaled to the difference L_f of two private gradients, while what they have in "
        "common is larger and shows who took part (the proof of Theorem 2.1 of F)",
    ),
    "column-space-noise": _both(
        certain.column_space_noise,
        "noise on the coefficients never leaves the column space of the private block (Eq. 8 of A)",
    ),
    "add-remove": _both(
        sensitivity.add_remove,
        "the epsilon of a withheld row is quoted for a replaced one: a factor of two is missing",
    ),
    "dual-labels": _both(
        certain.dual_labels,
        "labels stay at the central node, but the dual it broadcasts has their signs (A)",
    ),
    "embeddings": _both(
        sampling.embeddings,
        "noisy embeddings are sent row by row, which shows the batch, and amplification is claimed",
    ),
    "one-byte-seed": _both(
        certain.one_byte_seed, "the noise is drawn from a seed of one byte: 256 guesses undo it"
    ),
    "learnt-bounds": _both(
        sensitivity.learnt_bounds,
        "the bounds of a private column are learnt from the column and taken as known",
    ),
    "batch-size": _both(
        sampling.batch_size,
        "the realised size of the private batch is printed: the batch is then one without "
        "replacement",
    ),
    "label-binary": _both(
        sensitivity.label_binary,
        "the accounting of orthogonal label contributions is used for a single-vector binary head, "
        "whose two contributions are opposite",
    ),
    "dropped-rows": _both(
        certain.dropped_rows,
        "rows with a missing private cell are dropped, and the number of rows counts as public",
    ),
}
