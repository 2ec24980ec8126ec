"""Paired ghost clipping: sums of clipped per-example gradients that are never formed one by one.

For a row x with public part f(x), Algorithm 1 needs Σ w_i (∇ℓ(x_i) − ∇ℓ_pub(f(x_i))) with weights
w_i that clip each *difference* to norm C. One forward and one backward pass per side give, at every
layer, the inputs and the output gradients; the norms follow from those alone, and the sum is one
weighted product per layer, with no second backward pass. DP-SGD is the case without a pair.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from halfmask.errors import InputError
from halfmask.neural.exact import ExactGradients, Side, take
from halfmask.neural.factors import (
    SQUARE_ROUNDING,
    Dense,
    Gradient,
    squared_norms,
    term_lengths,
    weighted_sum,
)
from halfmask.neural.layers import rule_for
from halfmask.neural.pair_norms import shortest_sum
from halfmask.neural.rowwise import check_rows_stay_apart, made_up, refuse_mixing_layers
from halfmask.neural.tap import Loss, listen, row_losses

# Norms are exact up to a relative rounding of a few units in the last place; clipping to a bound
# lower by sixteen of them keeps every contribution within the bound that the accounting assumes.
_MARGIN_UNITS = 16.0
CLIP_MARGIN = _MARGIN_UNITS * 2.0**-23


def clip_weights(norms: Tensor, clip_norm: float, *, margin: float = CLIP_MARGIN) -> Tensor:
    """min(1, C/norm) for every row, with C lowered by the margin; 0 where the norm is not finite.

    Guarantee: docs/proofs/ghost.md.
    """
    if not (clip_norm > 0.0 and math.isfinite(clip_norm)):
        raise InputError(f"Expected clip_norm={clip_norm} to be positive and finite.")
    bound = clip_norm * (1.0 - margin)
    weights = torch.where(norms > bound, bound / norms, torch.ones_like(norms))
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))


class GhostGradients:
    """Norms and weighted sums of per-row gradients of any network whose rows stay apart.

    `loss(outputs, targets)` returns one value per row; `public_loss`, the loss of the padded side,
    is the same one unless given. Gradients are with respect to the parameters that require one when
    the object is made, flattened in the order of `model.named_parameters()`; unused ones are zero.

    Call `clipped_sum`: its bound holds for whatever rows. `norms` and then `weighted_sum` (the same
    pass is used for both) are for weights of one's own, without care for terms that cancel.
    """

    def __init__(self, model: nn.Module, loss: Loss, *, public_loss: Loss | None = None) -> None:
        refuse_mixing_layers(model)
        self._model = model
        self._loss = loss
        self._public_loss = public_loss or loss
        self._parameters = {
            name: value for name, value in model.named_parameters() if value.requires_grad
        }
        if not self._parameters:
            raise InputError("the network has no parameter that requires a gradient")
        self._names = {id(value): name for name, value in self._parameters.items()}
        self._layers: dict[nn.Module, str] = {}
        by_hand: set[str] = set()
        for name, layer in model.named_modules():
            own = [v for v in layer.parameters(recurse=False) if id(v) in self._names]
            if own and rule_for(layer) is not None:
                self._layers[layer] = name or type(layer).__name__
            elif own:
                self._warn(f"layer {name or type(layer).__name__!r} ({type(layer).__name__})")
                by_hand.update(self._names[id(value)] for value in own)
        self._exact = ExactGradients(model, tuple(by_hand))
        self._by_hand = by_hand
        self._inspected = False
        self._parts: dict[str, list[Gradient]] = {}
        self._exact_squares = self._exact_terms = torch.zeros(0, dtype=torch.float64)
        self._sides: list[tuple[Side, float]] = []

    @property
    def size(self) -> int:
        """Length of the flat gradient."""
        return sum(value.numel() for value in self._parameters.values())

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters, in the order of the flat gradient."""
        return tuple(self._parameters.values())

    def norms(
        self, inputs: Any, targets: Any, *, padded: Any = None, padded_targets: Any = None
    ) -> Tensor:
        """The norm of each row's gradient, or of its difference to the padded row's, as float64.

        Inputs are a tensor, or a tuple of tensors for a network of several arguments, rows first.
        A norm that is not finite is returned as it is; `clip_weights` gives such a row weight zero.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        rows = _rows(given)
        sides: list[tuple[Side, float]] = [((given, targets, self._loss), 1.0)]
        if padded is not None:
            pair = padded if isinstance(padded, tuple) else (padded,)
            pair_targets = targets if padded_targets is None else padded_targets
            sides.append(((pair, pair_targets, self._public_loss), -1.0))
        self._sides, self._parts = sides, {}
        zeros = torch.zeros(rows, dtype=torch.float64, device=self.parameters[0].device)
        self._exact_squares, self._exact_terms = zeros, zeros
        if rows == 0:
            return zeros
        if not self._inspected:
            self._inspect(given, targets)
        self._parts = self._collect(sides, rows)
        if self._by_hand:
            self._exact_squares, self._exact_terms = self._exact.squared_norms(sides, rows)
        total = self._exact_squares.clone()
        for parts in self._parts.values():
            total += squared_norms(parts)
        return total.sqrt()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_rows weight · gradient of the rows last passed to `norms`, flat; weight 0 adds zero."""
        return self._flat(
            self._parts, weights.to(self.parameters[0].dtype), self._exact_sum(weights)
        )

    def _exact_sum(self, weights: Tensor) -> dict[str, Tensor]:
        if not self._by_hand:
            return {}
        return self._exact.weighted_sum(self._sides, weights.to(self.parameters[0].dtype))

    def _flat(
        self, parts: dict[str, list[Gradient]], weights: Tensor, exact: dict[str, Tensor]
    ) -> Tensor:
        flat = []
        for name, value in self._parameters.items():
            if name in exact:
                flat.append(exact[name].reshape(-1))
            elif name in parts:
                flat.append(weighted_sum(parts[name], weights, value.shape).reshape(-1))
            else:
                flat.append(weights.new_zeros(value.numel()))
        return torch.cat(flat)

    def clipped_sum(
        self,
        inputs: Any,
        targets: Any,
        clip_norm: float,
        *,
        padded: Any = None,
        padded_targets: Any = None,
        microbatch: int | None = None,
    ) -> Tensor:
        """Σ_rows of the gradients (or differences), each clipped to `clip_norm`, flat.

        `microbatch` bounds the rows in memory at once; the sum is the same.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        rows = _rows(given)
        step = rows if microbatch is None else microbatch
        total: Tensor | None = None
        for low in range(0, rows, max(1, step)):
            some = slice(low, low + step)
            norms = self.norms(
                take(given, some),
                take(targets, some),
                padded=None if padded is None else take(padded, some),
                padded_targets=None if padded_targets is None else take(padded_targets, some),
            )
            part = self._clipped(norms, clip_norm)
            total = part if total is None else total.add_(part)
        self._parts, self._sides = {}, []
        if total is None:
            return torch.zeros(self.size, dtype=self.parameters[0].dtype)
        return total

    def _clipped(self, norms: Tensor, clip_norm: float) -> Tensor:
        """The clipped sum over the rows last passed to `norms`.

        Single precision cannot add up a row whose terms are far longer than their sum. Such a row
        is measured and added up in double precision; by layers without a rule it counts as longer.
        """
        dtype = self.parameters[0].dtype
        unit = torch.finfo(dtype).eps
        least = shortest_sum(self._exact_terms, unit)
        terms = torch.zeros_like(norms)
        for parts in self._parts.values():
            terms += term_lengths(parts).square()
        # The most that a sum of products can lose is added: a norm is never too small.
        lost = SQUARE_ROUNDING * terms

        def weigh(squares: Tensor, least: Tensor, lost: Tensor) -> Tensor:
            found = (squares + lost).sqrt().maximum(least)
            return clip_weights(found, clip_norm, margin=_MARGIN_UNITS * unit)

        weights = weigh(norms.square(), least, lost)
        rows = (shortest_sum(terms.sqrt(), unit) * weights > clip_norm).nonzero().flatten()
        if dtype == torch.float64 or not len(rows):
            return self.weighted_sum(weights)
        own = {name: [part.doubled(rows) for part in parts] for name, parts in self._parts.items()}
        squares = self._exact_squares[rows]
        for parts in own.values():
            squares = squares + squared_norms(parts)
        found = weigh(squares, least[rows], lost[rows])
        exact = self._exact_sum(weights.index_copy(0, rows, found))
        others = self._flat(self._parts, weights.index_fill(0, rows, 0.0).to(dtype), exact)
        return (others.double() + self._flat(own, found, {})).to(dtype)

    def _collect(self, sides: list[tuple[Side, float]], rows: int) -> dict[str, list[Gradient]]:
        parts: dict[str, list[Gradient]] = {}
        everything = list(self._model.parameters())
        before = torch.get_rng_state() if self._by_hand else None
        for (inputs, targets, loss), sign in sides:
            uses = listen(self._model, self._layers, everything, loss, inputs, targets, rows)
            for use in uses:
                rule = rule_for(use.layer)
                assert rule is not None
                found = rule(use.layer, use.given, use.grad)
                for own, value in use.layer.named_parameters(recurse=False):
                    name = self._names.get(id(value))
                    if name is not None and name not in self._by_hand:
                        parts.setdefault(name, []).append(_signed(found[own], sign))
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            # The norms and the sum of such layers come from two passes, which must agree.
            raise InputError(
                "the network draws random numbers (dropout?) and has layers without a ghost rule "
                f"({', '.join(sorted(self._by_hand))}): switch the randomness off"
            )
        return parts

    def _inspect(self, inputs: tuple[Any, ...], targets: Any) -> None:
        """On two made-up rows: do rows stay apart, and does every use go through a layer?"""
        generator = torch.Generator().manual_seed(0)
        inputs, targets = made_up(inputs, generator), made_up(targets, generator)
        check_rows_stay_apart(self._model, self._loss, inputs, targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parts = self._collect([((inputs, targets, self._loss), 1.0)], 2)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            losses = row_losses(self._loss, self._model(*inputs), targets, 2)
            true = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        ones = torch.ones(2, dtype=self.parameters[0].dtype, device=self.parameters[0].device)
        for (name, value), expected in zip(self._parameters.items(), true, strict=True):
            if name in self._by_hand or (expected is None and name not in parts):
                continue
            kinds = {isinstance(part, Dense) for part in parts.get(name, [])}
            if len(kinds) == 1 and expected is not None:
                got = weighted_sum(parts[name], ones, value.shape)
                if torch.allclose(
                    got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())
                ):
                    continue
            self._warn(f"parameter {name!r}, which is used outside its layer,")
            self._by_hand.add(name)
        self._exact = ExactGradients(self._model, tuple(self._by_hand))
        self._inspected = True

    @staticmethod
    def _warn(what: str) -> None:
        warnings.warn(
            f"{what} has no ghost clipping rule: its gradients are computed row by row, "
            "which is exact and slow",
            stacklevel=3,
        )


def _signed(part: Gradient, sign: float) -> Gradient:
    if sign > 0:
        return part
    if isinstance(part, Dense):
        return Dense(value=part.value, sign=sign)
    return type(part)(left=part.left, right=part.right, sign=sign)


def _rows(inputs: tuple[Any, ...]) -> int:
    first = inputs[0]
    return _rows(tuple(first)) if isinstance(first, tuple | list) else int(first.shape[0])
