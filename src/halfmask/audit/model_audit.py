"""The audit of a fitted model: trained again on the user's rows with canaries, and its columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfmask.accounting.budget import Budget
from halfmask.audit.attribute import Inference, attribute_inference, draw
from halfmask.audit.finding import Finding
from halfmask.audit.one_run import one_run
from halfmask.errors import HalfmaskError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.model_folder import damaged, write_text
from halfmask.signs import part_of
from halfmask.table import Table

AUDIT_FILE = "audit.json"
FIGURE_FILE = "attribute-inference.svg"
AUDITED = (
    "one more training of {mechanism} with the model's options and budget, on these rows with "
    "{canaries} canaries among them; the model itself was attacked column by column"
)


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    """What the one-run audit found, and how well each private column is guessed."""

    finding: Finding
    inferences: tuple[Inference, ...]
    figure: str | None

    def to_json(self) -> dict[str, Any]:
        """The finding's fields, with the columns beside them."""
        return {
            **self.finding.to_json(),
            "attribute_inference": [inference.to_json() for inference in self.inferences],
            "figure": self.figure,
            "audited": AUDITED.format(**self.finding.details, mechanism=self.finding.mechanism),
            "covered_by_guarantee": False,
        }


def audit_model(
    folder: Path,
    frame: Any,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    out: Path | None = None,
    report: Callable[[float, str], None] | None = None,
) -> ModelAudit:
    """Train once more as the model was trained, with canaries, and attack its columns.

    Nothing is charged, so what is found is for the owner of the data alone: it is written to the
    folder `out` if one is named, and never into the model's own, which others are handed.
    """
    from halfmask.training import train

    model = Model.load(folder)
    _check_out(folder, out)
    if model.encoder is None:
        raise InputError(
            "This model was fitted on bare arrays: an audit with your data needs a model that was "
            "trained with a schema."
        )
    if model.options is None:
        raise InputError(
            "This model was trained with an option that a file cannot hold (a function), so it "
            "cannot be trained again from here: call halfmask.audit.one_run.one_run on your fit."
        )
    tell = report or (lambda share, text: None)
    # An attack on how labels are explained needs them; nothing that it finds is released.
    table = model.encoder.encode(frame).labelled()
    privacy = model.privacy

    def fit(planted: Table) -> Model:
        try:
            return train(
                planted,
                Budget(
                    epsilon=privacy.calibrated_epsilon,
                    delta=privacy.delta,
                    relation=privacy.relation,
                ),
                method=model.method,
                noise=noise_source(),
                encoder=model.encoder,
                options=model.options,
            )
        except HalfmaskError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError):
            if not model.options:
                raise
        damaged("it cannot be trained again with its stored options")

    tell(0.05, "training with canaries")
    with part_of("audit", 0.05, 0.6):
        finding = one_run(
            table,
            fit,
            claimed=privacy.calibrated_epsilon,
            delta=privacy.delta,
            relation=privacy.relation,
            mechanism=model.method,
            canaries=canaries,
            confidence=confidence,
        )
    tell(0.6, "guessing private columns")
    with part_of("audit", 0.6, 1.0):
        inferences = tuple(attribute_inference(model, table)) if table.private_sources else ()
    if out is None:
        return ModelAudit(finding=finding, inferences=inferences, figure=None)
    out.mkdir(parents=True, exist_ok=True)
    found = ModelAudit(finding=finding, inferences=inferences, figure=_drawn(inferences, out))
    text = json.dumps(found.to_json(), indent=2, allow_nan=False)
    write_text(out / AUDIT_FILE, text)
    return found


def _check_out(folder: Path, out: Path | None) -> None:
    """Refuse to write exact figures of private rows to where the attacker looks."""
    if out is None:
        return
    model, asked = folder.resolve(), out.resolve()
    if asked == model or model in asked.parents:
        raise InputError(
            "The result of an audit tells of private rows, and the model folder is what others "
            "see: name a folder outside it with --out."
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file: name a folder with --out.")


def _drawn(inferences: tuple[Inference, ...], folder: Path) -> str | None:
    """The figure's name; None where nothing is private but the label, or matplotlib is missing."""
    if not inferences:
        return None
    try:
        draw(inferences, folder / FIGURE_FILE)
    except ModuleNotFoundError:
        return None
    return FIGURE_FILE
