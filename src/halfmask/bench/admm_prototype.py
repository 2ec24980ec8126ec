"""A copy of the prototype that A describes, kept to be measured against.

A, section 5: "We apply L-BFGS-B algorithm to do the x update in (7) and entry-wise optimization
for z in (9)", both from scipy. The gradient of the x step is given to the optimiser, which A does
not say and which only helps the prototype. Algorithm 1, logistic loss, ℓ2 regulariser, no noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from halfmask.vertical.block import Vector


@dataclass
class Prototype:
    """The parties' blocks and the state of Algorithm 1, from zeros; one call of `round` each."""

    blocks: list[Any]
    targets: Vector
    rho: float
    strength: float
    tight: bool = False
    x: list[Vector] = field(init=False)
    shares: list[Vector] = field(init=False)
    z: Vector = field(init=False)
    dual: Vector = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.targets)
        self.x = [np.zeros(block.shape[1]) for block in self.blocks]
        self.shares = [np.zeros(rows) for _ in self.blocks]
        self.z, self.dual = np.zeros(rows), np.zeros(rows)

    def centre(self) -> None:
        """Equations (9) and (10): z by one scalar minimisation per row, then the dual."""
        total = np.sum(self.shares, axis=0)
        self.z = np.array(
            [
                self._one(float(s), float(y), float(t))
                for s, y, t in zip(total, self.dual, self.targets, strict=True)
            ]
        )
        self.dual = self.dual + self.rho * (total - self.z)

    def _one(self, share: float, dual: float, target: float) -> float:
        rho = self.rho

        def objective(z: float) -> float:
            margin = -target * z
            loss = max(margin, 0.0) + math.log1p(math.exp(-abs(margin)))
            return loss - dual * z + rho / 2 * (share - z) ** 2

        options = {"xtol": 1e-12} if self.tight else {}
        return float(minimize_scalar(objective, options=options).x)

    def parties(self) -> None:
        """Equation (7) for every party, against the others' shares of the round before."""
        total = np.sum(self.shares, axis=0)
        shares = []
        for index, block in enumerate(self.blocks):
            others = total - self.shares[index] - self.z

            def objective(
                x: Vector, block: Any = block, others: Vector = others
            ) -> tuple[float, Vector]:
                scores = block @ x
                gap = others + scores
                value = self.strength / 2 * (x @ x) + self.dual @ scores + self.rho / 2 * gap @ gap
                gradient = self.strength * x + block.T @ (self.dual + self.rho * gap)
                return float(value), gradient

            limits = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 100_000, "maxfun": 100_000}
            found = minimize(
                objective,
                self.x[index],
                jac=True,
                method="L-BFGS-B",
                options={**limits, "maxcor": 50} if self.tight else {},
            )
            self.x[index] = found.x
            shares.append(np.asarray(block @ found.x))
        self.shares = shares

    def round(self) -> None:
        """One round as the coordinator of this package counts them: z and dual, then shares."""
        self.centre()
        self.parties()
