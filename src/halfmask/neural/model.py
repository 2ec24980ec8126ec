"""A fitted network as a model: stored as arrays, evaluated without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.model import Model
from halfmask.model_folder import damaged
from halfmask.neural.inputs import Inputs
from halfmask.settings import CONFIG
from halfmask.statement import Statement
from halfmask.table import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuralModel(Model):
    """Fully connected layers with ReLU between them, on the rows of `inputs`."""

    kind: ClassVar[str] = "mlp"

    inputs: Inputs
    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]

    def scores(self, table: Table) -> Floats:
        """One column per class, or the log odds of the second of two classes."""
        rows = self.inputs.rows(table)
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = rows @ weight.T + bias
            if place < last:
                np.maximum(rows, 0.0, out=rows)
        scores = rows.astype(np.float64)
        if scores.shape[1] == 2:
            return scores[:, 1:] - scores[:, :1]
        return scores

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights and biases by number, and the inputs' arrays behind a prefix."""
        stored: dict[str, NDArray[Any]] = {}
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            stored[f"weight{place}"], stored[f"bias{place}"] = weight, bias
        return stored | {f"inputs.{name}": a for name, a in self.inputs.to_arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> NeuralModel:
        """The inverse of `arrays`."""
        layers = sum(name.startswith("weight") for name in arrays)
        inputs = {n.removeprefix("inputs."): a for n, a in arrays.items() if "inputs." in n}
        weights = tuple(arrays[f"weight{place}"] for place in range(layers))
        biases = tuple(arrays[f"bias{place}"] for place in range(layers))
        for weight, bias in zip(weights, biases, strict=True):
            numbers = weight.dtype == bias.dtype == np.float32
            if not numbers or weight.ndim != 2 or bias.shape != weight.shape[:1]:
                damaged("the layers of its network")
        if not layers:
            damaged("its network has no layer")
        return cls(inputs=Inputs.from_arrays(inputs), weights=weights, biases=biases, **common)


def fit_neural_model(
    table: Table,
    releaser: Releaser,
    *,
    options: dict[str, Any],
    checkpoint: str | Path | None = None,
    state: Callable[[], Statement],
    **common: Any,
) -> NeuralModel:
    """Fit the method `mlp` and keep its arrays; `state` makes the statement once all is charged."""
    try:
        from halfmask.neural.method import fit_mlp
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise InputError("mlp needs torch: install halfmask[torch].") from None
    fit = fit_mlp(table, releaser, options.get(CONFIG), checkpoint=checkpoint)
    layers = fit.network.linear
    return NeuralModel(
        inputs=fit.inputs,
        weights=tuple(layer.weight.detach().numpy().copy() for layer in layers),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in layers),
        privacy=state(),
        details=fit.details,
        options=options,
        **common,
    )
