"""Standard normals from random 64-bit words, by the ziggurat of Marsaglia and Tsang.

The density exp(−x²/2) for x > 0 is covered by 256 layers of one and the same area: rectangles of
width `_EDGE[i]` that end in a wedge, and a lowest one that ends in the tail beyond `TAIL`. A word
picks a layer by its low 8 bits, and a point of it and a sign by the other 56 (Doornik 2005: bits
that do both jobs leave a trace). Ninety-nine points out of a hundred lie under the curve without
looking, which is a product and a comparison on whole arrays, where the pair of Box and Muller
needs a logarithm and a sine; the others are decided exactly, or drawn again.

Guarantee: docs/proofs/floating_point.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# A source of so many independent 64-bit words.
Words = Callable[[int], NDArray[np.uint64]]

LAYERS = 256
# Where the tail starts: the one value at which the layers end exactly at the top of the curve.
TAIL = 3.6541528853610088
# Words at a time: their temporaries stay in the cache.
_BLOCK = 1 << 15
# Uniforms below 2⁻¹¹ get more bits, since 64 would leave them fewer than the 53 of a double.
_SMALL = np.uint64(1 << 53)


def _edges() -> Floats:
    """Right ends of the layers from the lowest upwards, and 0 for the top of the curve."""
    density = math.exp(-0.5 * TAIL * TAIL)
    area = TAIL * density + math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
    # The lowest layer is a rectangle and the tail: as wide as a rectangle of its area would be.
    edges = [area / density, TAIL]
    while len(edges) < LAYERS:
        density += area / edges[-1]
        edges.append(math.sqrt(-2.0 * math.log(density)))
    return np.array([*edges, 0.0])


_EDGE = _edges()
_INNER = _EDGE[1:].copy()
_STEP = _EDGE[:-1] * 2.0**-55
_HEIGHT = np.exp(-0.5 * _EDGE * _EDGE)


def normals(size: int, words: Words) -> Floats:
    """`size` independent standard normals."""
    out = np.empty(size)
    waiting, layers = [], []
    for start in range(0, size, _BLOCK):
        block = out[start : start + _BLOCK]
        layer, outside = _points(block, words)
        waiting.append(outside + start)
        layers.append(layer[outside])
    if waiting:
        _settle(out, np.concatenate(waiting), np.concatenate(layers), words)
    return out


def _points(out: Floats, words: Words) -> tuple[Integers, Integers]:
    """Fill `out` by a point of a layer each; the layers, and where the curve has to be asked."""
    bits = words(len(out)).view(np.int64)
    layer = bits & (LAYERS - 1)
    out[:] = bits >> 8
    out *= _STEP.take(layer, mode="clip")
    return layer, np.flatnonzero(np.abs(out) >= _INNER.take(layer, mode="clip"))


def _settle(out: Floats, at: Integers, layer: Integers, words: Words) -> None:
    """Decide the points `at` that no rectangle holds, and draw anew those above the curve."""
    while len(at):
        point = out[at]
        low, high = _HEIGHT[layer], _HEIGHT[layer + 1]
        under = low + uniforms(len(at), words) * (high - low) < np.exp(-0.5 * point * point)
        lowest = layer == 0
        point[lowest] = np.copysign(_tail(int(lowest.sum()), words), point[lowest])
        out[at] = point
        at = at[~(under | lowest)]
        point = np.empty(len(at))
        layer, outside = _points(point, words)
        out[at] = point
        at, layer = at[outside], layer[outside]


def _tail(size: int, words: Words) -> Floats:
    """Normals beyond TAIL: an exponential step from there, kept with chance exp(−step²/2)."""
    out = np.empty(size)
    at = np.arange(size)
    while len(at):
        step = np.log(uniforms(len(at), words)) / -TAIL
        out[at] = TAIL + step
        at = at[-2.0 * np.log(uniforms(len(at), words)) <= step * step]
    return out


def uniforms(size: int, words: Words) -> Floats:
    """(k + ½)/2⁶⁴ for each word k, rounded to the nearest double; small ones get 64 bits more."""
    bits = words(size)
    values = bits.astype(np.float64)
    values += 0.5
    small = np.flatnonzero(bits < _SMALL)
    if len(small):
        values[small] = bits[small] + (words(len(small)).astype(np.float64) + 0.5) * 2.0**-64
    values *= 2.0**-64
    return values
