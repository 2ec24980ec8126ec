"""Clipped sums of a network's gradients, without a gradient per row: norms from products.

`MlpGradients` sums gradients of the loss, or of its difference to the loss of padded rows, each
clipped by a norm that is found from inputs and output gradients of every layer (`PairProducts`).
A padded row g(f(x)) equals x in the public columns and a line of a table in the private ones: one
line for a constant or the released means, one line per class for released class means
(`StructuredRows`). Its first layer then costs a lookup, and the products that the norms of that
layer need do not change while the network does: they are computed once for the whole table.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from halfmask.errors import InputError
from halfmask.neural.inputs import MadeRows
from halfmask.neural.network import Mlp

# Rounding of each product, in units of the last place of its longest possible value.
_ROUNDING = 32.0
# A sum shorter than so many units in the last place of its terms (2⁻⁹ of them in single precision)
# cannot be formed to a relative 2⁻¹¹.
_SHORTEST = 2.0**14


@dataclass(frozen=True, kw_only=True)
class Products:
    """Of a = (x, 1) and d = x − g(f(x)), per row: ⟨a,a⟩, ⟨d,d⟩ and ⟨a,d⟩ (d's bias entry is 0)."""

    own: Tensor
    gap: Tensor
    cross: Tensor

    def take(self, rows: Tensor | slice) -> Products:
        return Products(own=self.own[rows], gap=self.gap[rows], cross=self.cross[rows])


def products(real: Tensor, padded: Tensor) -> Products:
    """The products of rows and padded rows; sums are accumulated in float64."""
    gap = real - padded
    return Products(own=_dot(real, real).add_(1.0), gap=_dot(gap, gap), cross=_dot(real, gap))


def _dot(one: Tensor, two: Tensor) -> Tensor:
    return torch.mul(one, two).sum(1, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class PairProducts:
    """The norm of u⊗a − v⊗b from products of its factors, never smaller than what will be summed.

    A norm that comes out too small lets a row exceed the clip norm. u⊗a − v⊗b = (u−v)⊗a + v⊗(a−b)
    loses nothing where the two rows are alike, but its two terms can cancel each other, and then
    the norm is the rounding of their products: so the largest rounding is added. And where u⊗a and
    v⊗b are so much longer than their difference that single precision cannot subtract them, the
    row counts as longer than it is.

    Held are ‖u−v‖², ‖v‖² and ⟨u−v, v⟩ of output gradients, and the products of a and a−b, in
    float64.
    `unit` is the relative spacing of the numbers that u, v, a and b are held in.
    """

    apart: Tensor
    padded: Tensor
    cross: Tensor
    given: Products
    unit: float

    def squares(self) -> Tensor:
        """‖u⊗a − v⊗b‖², with its largest rounding added."""
        given = self.given
        terms = self.apart * given.own + self.padded * given.gap
        found = terms * (1.0 + _ROUNDING * self.unit) + 2.0 * self.cross * given.cross
        return found.clamp_min(0.0)

    def summable(self) -> Tensor:
        """`squares`, but no less than what the sum of u⊗a and −v⊗b may lose by rounding."""
        long, length = self.given.own.sqrt(), self.padded.sqrt()
        terms = (self.apart.sqrt() + 2.0 * length) * long + length * self.given.gap.sqrt()
        return self.squares().maximum((_SHORTEST * self.unit * terms).square())


class TensorRows:
    """Rows that are made whenever some of them are read, as tensors."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, made: MadeRows) -> None:
        self._made, self.shape = made, made.shape

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return torch.from_numpy(self._made[rows if isinstance(rows, slice) else rows.numpy()])


class StructuredRows:
    """Rows with `public` leading public columns, padded from `table` by each row's `codes`.

    `table` is (lines, private columns) and must be free of private values: declared constants, or
    the output of a paid release. `codes` (one line number per row) must be public; without them
    the table has one line.
    """

    def __init__(
        self,
        rows: Tensor | TensorRows,
        *,
        public: int,
        table: Tensor,
        codes: Tensor | None = None,
        known: Products | None = None,
    ) -> None:
        """`known` are the products of the rows where they were computed before."""
        if table.dim() != 2 or table.shape[1] != rows.shape[1] - public:
            raise InputError(
                f"Expected a table of {rows.shape[1] - public} private columns, "
                f"got {tuple(table.shape)}."
            )
        if codes is None:
            if len(table) != 1:
                raise InputError(f"A table of {len(table)} lines needs a line number per row.")
            codes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        if codes.shape != (len(rows),):
            raise InputError(f"Expected {len(rows)} line numbers, got {tuple(codes.shape)}.")
        self.rows = rows
        self.public = public
        self.table = table.to(device=rows.device, dtype=rows.dtype)
        self.codes = codes
        if known is None:
            own, gap, cross = torch.zeros(3, len(rows), dtype=torch.float64)
            for low in range(0, len(rows), 8192):
                some = slice(low, low + 8192)
                found = products(rows[some], self.padded(some))
                own[some], gap[some], cross[some] = found.own, found.gap, found.cross
            known = Products(own=own, gap=gap, cross=cross)
        self.products = known

    def __len__(self) -> int:
        return len(self.rows)

    def padded(self, rows: Tensor | slice) -> Tensor:
        """g(f(x)) written out, for the public batch and for tests."""
        real = self.rows[rows]
        return torch.cat([real[:, : self.public], self.table[self.codes[rows]]], dim=1)

    def to(self, device: torch.device) -> StructuredRows:
        """The same rows on another device."""
        if self.rows.device == device:
            return self
        held, rows = self.products, self.rows
        return StructuredRows(
            (rows[:] if isinstance(rows, TensorRows) else rows).to(device),
            public=self.public,
            table=self.table,
            codes=self.codes.to(device),
            known=Products(
                own=held.own.to(device), gap=held.gap.to(device), cross=held.cross.to(device)
            ),
        )

    def take(self, rows: Tensor | slice) -> StructuredRows:
        """Some of the rows, with the products they already have."""
        return StructuredRows(
            self.rows[rows],
            public=self.public,
            table=self.table,
            codes=self.codes[rows],
            known=self.products.take(rows),
        )


# Columns whose squares are added up in single precision.
_COLUMNS = 1024

# Norms are exact up to a relative rounding of a few units in the last place; clipping to a bound
# lower by sixteen of them keeps every contribution within the bound that the accounting assumes.
CLIP_MARGIN = 16.0 * 2.0**-23


def tensor_clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
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
        lookup = None
        weigh = partial(tensor_clip_weights, clip_norm=clip_norm)
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
