"""What the label holder draws once per run and keeps: hidden labels, the class prior, the run's id.

A run that is resumed must not draw again: a second set of randomised labels, or a second noisy
prior, would be a second release. So everything drawn is charged to the label holder's ledger, then
stored in the run's folder, then used. A crash between charge and store wastes budget and never
loses track of it. Guarantee: docs/proofs/randomized_response.md.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import Ledger
from halfmask.accounting.ledger_file import locked, resolved
from halfmask.errors import InputError
from halfmask.mechanisms.release import Door, Releaser, system_door
from halfmask.schema import Schema
from halfmask.vertical.block import Vector
from halfmask.vertical.coordinator import Coordinator
from halfmask.vertical.experts import LabelTerms, class_prior, pay_for_labels
from halfmask.vertical.labels import HiddenLabels, hide_labels
from halfmask.vertical.network import RunFile
from halfmask.vertical.store import write_durably

_HIDDEN = "hidden-labels.json"
_BEGUN = ("run-id.json", "state.npz")


class LabelHolder:
    """The labels (0 and 1) of one run, and what may be told of them."""

    def __init__(self, settings: RunFile, labels: Vector, door: Door = system_door) -> None:
        self._settings = settings
        self._labels = labels
        self._door = door
        self._private = Schema.from_toml(settings.schema).label.role == "private"
        if settings.hide_labels is None and (settings.out / _HIDDEN).exists():
            raise InputError(
                f"The run in {settings.out} began with hidden labels: keep hide_labels in the run "
                "file, or choose another folder. Nothing was sent."
            )
        begun = any((settings.out / name).exists() for name in _BEGUN)
        if settings.hide_labels is not None and begun and not (settings.out / _HIDDEN).exists():
            raise InputError(
                f"The run in {settings.out} began with labels in clear, which cannot be hidden "
                "afterwards: choose another folder."
            )
        if self._private and settings.method == "admm" and settings.hide_labels is None:
            raise InputError(
                "The schema declares the label private, and the dual that admm broadcasts tells "
                "every party every label: set hide_labels in the run file, or use experts."
            )

    def run_id(self) -> str:
        """The id under which a resumed run goes on: who has answered before answers alike."""
        return str(self._once("run-id.json", lambda: secrets.token_hex(8)))

    def hidden(self) -> HiddenLabels | None:
        """The labels by randomised response, if the run file asks for it: drawn once, charged."""
        epsilon = self._settings.hide_labels
        if epsilon is None:
            return None
        kept = self._once(_HIDDEN, lambda: self._randomised(epsilon))
        if kept["epsilon"] != epsilon or len(kept["targets"]) != len(self._labels):
            raise InputError(
                f"The run in {self._settings.out} hid {len(kept['targets'])} labels at epsilon "
                f"{kept['epsilon']:g}: keep both, or choose another folder. Nothing was sent."
            )
        targets = np.asarray(kept["targets"], dtype=np.float64)
        return HiddenLabels(targets=targets, excess=float(kept["excess"]), epsilon=epsilon)

    def terms(self, coordinator: Coordinator) -> LabelTerms:
        """The class prior: exact for public labels, from the hidden ones, or one noisy number.

        Where labels are private and in clear, all that the parties will spend of them is charged
        with it, and kept for the runs that resume this one.
        """
        hidden = self.hidden()
        kept = self._once("label-terms.json", lambda: vars(self._terms(coordinator, hidden)))
        return LabelTerms(**kept)

    def _randomised(self, epsilon: float) -> dict[str, Any]:
        hidden = hide_labels(self._labels, epsilon=epsilon, releaser=self._releaser(epsilon))
        return {
            "epsilon": epsilon,
            "excess": hidden.excess,
            "targets": hidden.targets.tolist(),
        }

    def _terms(self, coordinator: Coordinator, hidden: HiddenLabels | None) -> LabelTerms:
        if hidden is None and self._private:
            epsilon = self._settings.label_epsilon
            budget = Budget(epsilon=epsilon, delta=self._settings.delta)
            return pay_for_labels(coordinator, self._releaser(epsilon), budget)
        labels = self._labels if hidden is None else hidden.targets
        return LabelTerms(prior=class_prior(labels, private=False, ratio=1.0, releaser=None))

    def _releaser(self, epsilon: float) -> Releaser:
        return self._door(self._ledger(epsilon), whole_plan=True)

    def _ledger(self, epsilon: float) -> Ledger:
        if self._settings.ledger is not None:
            return Ledger.open(self._settings.ledger)
        path = self._settings.out / "labels.jsonl"
        return Ledger.open_or_create(
            path, epsilon=epsilon, delta=self._settings.delta, relation="replace"
        )

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made in the first attempt of a run and kept for the others."""
        path = self._settings.out / name
        # Two attempts at once must not draw twice.
        with locked(resolved(path).with_name(name + ".lock"), write=True, create=True):
            if not path.exists():
                write_durably(path, json.dumps(make()).encode())
            return json.loads(path.read_text("utf-8"))
