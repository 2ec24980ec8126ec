"""Paired ghost clipping: sums of clipped per-row gradients that are never formed one by one.

For a row x with public part f(x), Algorithm 1 needs Σ w_i (∇ℓ(x_i) − ∇ℓ_pub(f(x_i))) with weights
w_i that clip each *difference* to norm C. Inputs and output gradients of every layer give the norms
and, as one weighted product per layer, the sum. DP-SGD is the case without a pair.

Written out for the fully connected network, without autograd: a chunk of rows goes through forward
pass, norms and weighted products before the next one is touched, in memory that is allocated once
and stays in the cache. With structured padding the padded half of the first layer is a lookup, and
its weight gradient is one product with the difference of the two halves.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from halfmask.errors import InputError
from halfmask.neural.network import Mlp
from halfmask.neural.structured import PairProducts, Products, StructuredRows

# Columns whose squares are added up in single precision.
_COLUMNS = 1024

# Norms are exact up to a relative rounding of a few units in the last place; clipping to a bound
# lower by sixteen of them keeps every contribution within the bound that the accounting assumes.
CLIP_MARGIN = 16.0 * 2.0**-23


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C/norm) for every row, with C lowered by the margin; 0 where the norm is not finite.

    Guarantee: docs/proofs/ghost.md.
    """
    if not (clip_norm > 0.0 and math.isfinite(clip_norm)):
        raise InputError(f"Expected clip_norm={clip_norm} to be positive and finite.")
    bound = clip_norm * (1.0 - CLIP_MARGIN)
    weights = torch.where(norms > bound, bound / norms, torch.ones_like(norms))
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))


def _softmax_gradient(scores: Tensor, targets: Tensor) -> None:
    """Overwrite logits by the gradient of the cross entropy, softmax(scores) − e_target."""
    torch.softmax(scores, dim=1, out=scores)
    minus = scores.new_full((1, 1), -1.0).expand(len(scores), 1)
    scores.scatter_add_(1, targets.unsqueeze(1), minus)


def _gradient_without_label(scores: Tensor) -> None:
    """Overwrite logits by softmax(scores) − 1/K: the cross entropy with every class alike."""
    torch.softmax(scores, dim=1, out=scores)
    scores.sub_(1.0 / scores.shape[1])


class MlpGradients:
    """Clipped sums of gradients (or of differences to padded rows) of a fully connected network.

    The loss is the cross entropy; the flat gradient is laid out as `network.parameters()`. `chunk`
    bounds the rows in flight, and those that are added up in single precision; the sum depends on
    it by rounding only. With `label_private` the loss of a padded row is the one that no label
    enters, with every class alike (docs/proofs/network.md, "A private label").
    """

    def __init__(self, network: Mlp, *, chunk: int = 2048, label_private: bool = False) -> None:
        self._network = network
        self._label_private = label_private
        self._chunk = chunk
        self._buffers: dict[tuple[str, int], Tensor] = {}
        first = network.linear[0].weight
        self.size = sum(parameter.numel() for parameter in network.parameters())
        self._total = torch.zeros(self.size, dtype=first.dtype, device=first.device)

    def clipped_sum(
        self,
        rows: Tensor | StructuredRows,
        targets: Tensor,
        clip_norm: float,
        *,
        padded: Tensor | None = None,
    ) -> Tensor:
        """Σ_rows of gradients clipped to `clip_norm`; a row without a finite norm adds zero.

        `StructuredRows` pair every row with its padding; `padded` pairs plain rows with any other.
        The result is overwritten by the next call.
        """
        return self._run(rows, targets, lambda norms: clip_weights(norms, clip_norm), padded)

    def _run(
        self,
        rows: Tensor | StructuredRows,
        targets: Tensor,
        weigh: Callable[[Tensor], Tensor],
        padded: Tensor | None,
    ) -> Tensor:
        lookup = None
        self._total.zero_()
        # Over many chunks single precision would round away more than the noise was widened for.
        whole = None if len(rows) <= self._chunk else torch.zeros_like(self._total).double()
        with torch.no_grad():
            if isinstance(rows, StructuredRows):
                lookup = rows.table @ self._network.linear[0].weight[:, rows.public :].t()
            for low in range(0, len(rows), self._chunk):
                some = slice(low, low + self._chunk)
                batch = rows.take(some) if isinstance(rows, StructuredRows) else rows[some]
                pair = None if padded is None else padded[some]
                self._add(batch, targets[some], weigh, pair, lookup)
                if whole is not None:
                    whole.add_(self._total)
                    self._total.zero_()
        return self._total if whole is None else whole

    def _add(
        self,
        rows: Tensor | StructuredRows,
        targets: Tensor,
        weigh: Callable[[Tensor], Tensor],
        padded: Tensor | None,
        lookup: Tensor | None,
    ) -> None:
        """Add Σ weigh(norms) · gradient over a chunk of rows to the total."""
        paired = padded is not None or lookup is not None
        hidden = self._forward(rows, padded, lookup)
        grads = self._backward(hidden, targets, paired=paired)
        norms = self._norms(rows, padded, hidden, grads)
        weights = weigh(norms)
        if not bool(torch.isfinite(norms).all()):
            # A weight of zero would still turn an infinity into NaN: leave the row out instead.
            kept = torch.isfinite(norms).nonzero().flatten()
            if len(kept):
                chosen = rows.take(kept) if isinstance(rows, StructuredRows) else rows[kept]
                pair = None if padded is None else padded[kept]
                self._add(chosen, targets[kept], lambda _: weights[kept], pair, lookup)
            return
        self._accumulate(rows, padded, hidden, grads, weights.to(self._total.dtype))

    def _forward(
        self, rows: Tensor | StructuredRows, padded: Tensor | None, lookup: Tensor | None
    ) -> list[Tensor]:
        """Outputs of every layer, the padded half below the real one; the last is the scores."""
        linear = self._network.linear
        count = len(rows)
        paired = padded is not None or lookup is not None
        outputs = [
            self._buffer(f"out{i}", count * (2 if paired else 1), layer.out_features)
            for i, layer in enumerate(linear)
        ]
        weight, bias = linear[0].weight, linear[0].bias
        first = outputs[0]
        if isinstance(rows, StructuredRows):
            assert lookup is not None
            real, at = rows.rows, rows.public
            top, bottom = first[:count], first[count:]
            torch.addmm(bias, real[:, :at], weight[:, :at].t(), out=top)
            torch.index_select(lookup, 0, rows.codes, out=bottom)
            bottom.add_(top)
            top.addmm_(real[:, at:], weight[:, at:].t())
        else:
            torch.addmm(bias, rows, weight.t(), out=first[:count])
            if padded is not None:
                torch.addmm(bias, padded, weight.t(), out=first[count:])
        for i, layer in enumerate(linear[1:], start=1):
            outputs[i - 1].relu_()
            torch.addmm(layer.bias, outputs[i - 1], layer.weight.t(), out=outputs[i])
        return outputs

    def _backward(self, outputs: list[Tensor], targets: Tensor, *, paired: bool) -> list[Tensor]:
        """Gradients with respect to every layer's output."""
        linear = self._network.linear
        grads = [outputs[-1]] * len(linear)
        if paired and self._label_private:
            _softmax_gradient(outputs[-1][: len(targets)], targets)
            _gradient_without_label(outputs[-1][len(targets) :])
        else:
            _softmax_gradient(outputs[-1], torch.cat([targets, targets]) if paired else targets)
        for i in range(len(linear) - 1, 0, -1):
            below = self._buffer(f"grad{i}", len(outputs[i]), linear[i].in_features)
            torch.mm(grads[i], linear[i].weight, out=below)
            torch.ops.aten.threshold_backward.grad_input(below, outputs[i - 1], 0, grad_input=below)
            grads[i - 1] = below
        return grads

    def _norms(
        self,
        rows: Tensor | StructuredRows,
        padded: Tensor | None,
        outputs: list[Tensor],
        grads: list[Tensor],
    ) -> Tensor:
        """Norms over all layers; those of pairs are never too small."""
        count = len(rows)
        total = torch.zeros(count, dtype=torch.float64, device=grads[0].device)
        for i, grad in enumerate(grads):
            if len(grad) == count:
                given = rows if i == 0 else outputs[i - 1]
                assert isinstance(given, Tensor)
                total += _square(grad) * _square(given).add_(1.0)
                continue
            if i > 0:
                below = outputs[i - 1]
                room = self._buffer("given", count, below.shape[1])
                found = _products(below[:count], below[count:], room)
            elif isinstance(rows, StructuredRows):
                found = rows.products
            else:
                assert padded is not None
                found = _products(rows, padded, self._buffer("given", count, rows.shape[1]))
            room = self._buffer("given", count, grad.shape[1])
            total += _pair(grad[:count], grad[count:], found, room)
        return total.sqrt()

    def _accumulate(
        self,
        rows: Tensor | StructuredRows,
        padded: Tensor | None,
        outputs: list[Tensor],
        grads: list[Tensor],
        weights: Tensor,
    ) -> None:
        count = len(rows)
        scale = torch.cat([weights, -weights]) if len(grads[0]) > count else weights
        at = 0
        for i, layer in enumerate(self._network.linear):
            grad = grads[i].mul_(scale.unsqueeze(1))
            weight = self._total[at : at + layer.weight.numel()].view_as(layer.weight)
            at += layer.weight.numel()
            bias = self._total[at : at + layer.bias.numel()]
            at += layer.bias.numel()
            if i > 0:
                weight.addmm_(grad.t(), outputs[i - 1])
            elif isinstance(rows, StructuredRows):
                self._structured(rows, grad[:count], grad[count:], weight)
            else:
                weight.addmm_(grad[:count].t(), rows)
                if padded is not None:
                    weight.addmm_(grad[count:].t(), padded)
            bias.add_(grad.sum(0))

    @staticmethod
    def _structured(rows: StructuredRows, top: Tensor, bottom: Tensor, weight: Tensor) -> None:
        """`bottom` already carries the minus sign of the pair."""
        at = rows.public
        weight[:, at:].addmm_(top.t(), rows.rows[:, at:])
        by_line = torch.zeros(
            len(rows.table), bottom.shape[1], dtype=bottom.dtype, device=bottom.device
        )
        by_line.index_add_(0, rows.codes, bottom)
        weight[:, at:].addmm_(by_line.t(), rows.table)
        weight[:, :at].addmm_((top + bottom).t(), rows.rows[:, :at])

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        kept = self._buffers.get((name, width))
        if kept is None or len(kept) < rows:
            kept = torch.empty(rows, width, dtype=self._total.dtype, device=self._total.device)
            self._buffers[name, width] = kept
        return kept[:rows]


def _square(rows: Tensor) -> Tensor:
    """Squared norms in float64; in single precision no more is added up than keeps its digits."""
    total = torch.linalg.vector_norm(rows[:, :_COLUMNS], dim=1).double().square_()
    for low in range(_COLUMNS, rows.shape[1], _COLUMNS):
        some = rows[:, low : low + _COLUMNS]
        total += torch.linalg.vector_norm(some, dim=1).double().square_()
    return total


def _products(real: Tensor, padded: Tensor, room: Tensor) -> Products:
    gap = torch.sub(real, padded, out=room)
    square = _square(gap)
    return Products(own=_square(real).add_(1.0), gap=square, cross=gap.mul_(real).sum(1).double())


def _pair(real: Tensor, padded: Tensor, given: Products, room: Tensor) -> Tensor:
    """‖u⊗a − v⊗b‖² for all rows of a layer."""
    gap = torch.sub(real, padded, out=room)
    pair = PairProducts(
        apart=_square(gap),
        padded=_square(padded),
        cross=gap.mul_(padded).sum(1).double(),
        given=given,
        unit=torch.finfo(real.dtype).eps,
    )
    return pair.summable()
