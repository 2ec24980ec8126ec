"""Record a training, release by release, and replay it on another frame.

`record` fits a copy of an estimator and keeps, beside each noisy value, the exact one. `replay`
runs the same fit on another frame and hands it the recorded noisy values, so that both are at the
same point of an adaptive method at each release. On neighbouring frames nothing but the exact
values may differ, and these by no more than was charged for: a check without any statistics.
Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sklearn.base import clone

from halfmask.audit.transcript import LEAK, Transcript, learnt, recorded, replayed
from halfmask.errors import InputError, ReplayError
from halfmask.estimators import _HalfmaskEstimator
from halfmask.mechanisms.release import Door
from halfmask.settings import CONFIG, split_method


def record(estimator: Any, frame: Any, y: Any = None, *, sample_weight: Any = None) -> Transcript:
    """Fit a copy of `estimator` on `frame`, as its own `fit` would, and keep every release.

    The transcript is not private, and no ledger is charged.
    """
    return recorded(partial(_fitted, estimator, frame, y, sample_weight))


def replay(
    estimator: Any, frame: Any, transcript: Transcript, y: Any = None, *, sample_weight: Any = None
) -> Transcript:
    """The same fit on another frame, handed the noisy values and the draws of `transcript`.

    Returns its own transcript: its exact values, the same noisy ones. A fit that plans other
    releases, of another shape or with other noise, raises ReplayError: between neighbours that
    difference would show without any noise.
    """
    told = replayed(transcript, partial(_fitted, estimator, frame, y, sample_weight))
    if learnt(told.model.model_) != learnt(transcript.model.model_):
        raise ReplayError(
            "What the encoding learnt from the frame (levels, bins, classes) is not what it learnt "
            "from the recorded one. " + LEAK
        )
    return told


def _fitted(estimator: Any, frame: Any, y: Any, sample_weight: Any, door: Door) -> Any:
    if not isinstance(estimator, _HalfmaskEstimator):
        raise InputError(
            f"Expected an estimator of halfmask, got {type(estimator).__name__}: pass the last "
            "step of a pipeline, and the frame it is given."
        )
    _, options = split_method(getattr(estimator, "method", ""), estimator.options)
    config = options.get(CONFIG)
    if options.get("public_seed", getattr(config, "public_seed", 0)) is None:
        raise InputError("A replay draws public batches again: pass a number as public_seed.")
    fitted = clone(estimator).set_params(ledger=None)
    fitted._adopt(fitted._trained(frame, y, door, sample_weight=sample_weight))
    return fitted
