"""Where randomness comes from: the operating system, unless an unsafe seed is asked for by name.

Noise is drawn on a power-of-two grid that depends on its standard deviation alone, so that adding
it to a value on the same grid is exact integer arithmetic: what is released is a rounding of the
ideal Gaussian mechanism, and the low bits carry nothing else.
Guarantee: docs/proofs/floating_point.md.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.types import Floats, Integers

# --- Standard normals from random 64-bit words, by the ziggurat of Marsaglia and Tsang.
# The density exp(−x²/2) for x > 0 is covered by 256 layers of one and the same area: rectangles of
# width `_EDGE[i]` that end in a wedge, and a lowest one that ends in the tail beyond `TAIL`. A word
# picks a layer by its low 8 bits, and a point of it and a sign by the other 56 (Doornik 2005: bits
# that do both jobs leave a trace). Ninety-nine points out of a hundred lie under the curve without
# looking, which is a product and a comparison on whole arrays, where the pair of Box and Muller
# needs a logarithm and a sine; the others are decided exactly, or drawn again.
# Guarantee: docs/proofs/floating_point.md.


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
    values = bits.astype(np.float64)  # with ½ added they would be the same doubles
    small = np.flatnonzero(bits < _SMALL)
    if len(small):
        values[small] = bits[small] + (words(len(small)).astype(np.float64) + 0.5) * 2.0**-64
    values *= 2.0**-64
    return values


_GRID_BITS = 32
# Numbers rounded and added at a time: their temporaries stay in the cache.


class NoiseSource(Protocol):
    """Standard normals, uniforms, and whether anyone could draw them again."""

    secure: bool
    description: str

    def normal(self, size: int) -> Floats:
        """`size` independent standard normals."""

    def uniform(self, size: int) -> Floats:
        """`size` independent uniforms in (0, 1]."""


class SystemNoise:
    """Every bit from a CSPRNG that the operating system seeds and reseeds; no state is kept here.

    The bits are OpenSSL's (an AES-CTR DRBG, reseeded after a fork), thirty times as fast as asking
    the kernel for each of them: a step of a network needs a megabyte or two.
    """

    secure = True
    description = "CSPRNG seeded by the operating system, Gaussian rounded to a power-of-two grid"

    def normal(self, size: int) -> Floats:
        """By the ziggurat; tails reach 17 standard deviations."""
        return normals(size, _words)

    def uniform(self, size: int) -> Floats:
        """Uniforms in (0, 1], with no fewer digits near zero than elsewhere."""
        return uniforms(size, _words)


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(ssl.RAND_bytes(8 * count), dtype=np.uint64)


class UnsafeSeededNoise:
    """Reproducible noise, for tests and reproductions. Whoever knows the seed can subtract it."""

    secure = False
    description = "not private: noise is reproducible"

    def __init__(self, unsafe_seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed_sequence(unsafe_seed, 0)))

    def normal(self, size: int) -> Floats:
        """`size` standard normals from the seeded generator."""
        return self._generator.standard_normal(size)

    def uniform(self, size: int) -> Floats:
        """`size` uniforms in (0, 1] from the seeded generator."""
        return 1.0 - self._generator.random(size)

    @property
    def state(self) -> dict[str, Any]:
        """The generator's state, so that a seeded run can resume bit for bit."""
        return dict(self._generator.bit_generator.state)

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._generator.bit_generator.state = value


def seed_sequence(unsafe_seed: int, stream: int) -> np.random.SeedSequence:
    """Independent streams of one unsafe seed: 0 is private noise, the others are public."""
    if isinstance(unsafe_seed, bool) or not isinstance(unsafe_seed, (int, np.integer)):
        raise InputError(f"Expected an integer as unsafe_seed, got {unsafe_seed!r}.")
    if unsafe_seed < 0:
        raise InputError(f"Expected unsafe_seed >= 0, got {unsafe_seed}.")
    return np.random.SeedSequence(int(unsafe_seed), spawn_key=(stream,))


def noise_source(unsafe_seed: int | None = None, *, machine: int = 0) -> NoiseSource:
    """The system's noise, or reproducible noise that a statement calls not private."""
    if unsafe_seed is None:
        return SystemNoise()
    return UnsafeSeededNoise(unsafe_seed + (machine << 32) if machine else unsafe_seed)


def public_generator(unsafe_seed: int | None = None) -> np.random.Generator:
    """Randomness for public choices (batches, initial weights), never shared with the noise."""
    seed = None if unsafe_seed is None else seed_sequence(unsafe_seed, 1)
    return np.random.default_rng(seed)


def padding_generator(noise: NoiseSource) -> np.random.Generator:
    """Randomness for padding of private rows: secret like the noise, and drawn apart from it."""
    if noise.secure:
        return np.random.default_rng()
    return np.random.default_rng((noise.uniform(4) * 2**32).astype(np.uint64))


def noise_grid(noise_std: float) -> float:
    """The power of two between noise_std·2⁻³³ and noise_std·2⁻³² on which values and noise live."""
    if not (math.isfinite(noise_std) and noise_std > 0):
        raise InputError(f"Expected a finite noise standard deviation > 0, got {noise_std}.")
    if not 1e-250 < noise_std < 1e250:
        raise InputError(f"The noise {noise_std:g} leaves the range of numbers: rescale the data.")
    return 2.0 ** (math.frexp(noise_std)[1] - 1 - _GRID_BITS)


def add_gaussian(value: Floats, noise_std: float, source: NoiseSource) -> Floats:
    """`value` + N(0, noise_std²), both rounded to `noise_grid(noise_std)` before they are added.

    A value that is not finite is an error: callers clip first. Both are whole multiples of the
    grid, so what comes out is a function of their exact sum alone.
    """
    value = np.asarray(value)
    grid = noise_grid(noise_std)
    released = source.normal(value.size)
    flat = value.reshape(-1)
    for start in range(0, value.size, _BLOCK):
        part = released[start : start + _BLOCK]
        part *= noise_std / grid
        np.rint(part, out=part)
        part += _whole(flat[start : start + _BLOCK], grid)
        part *= grid
    return released.reshape(value.shape)


def _whole(value: NDArray[Any], grid: float) -> Floats:
    """`value` in whole multiples of the grid."""
    whole: Floats = value.astype(np.float64)
    with np.errstate(over="ignore"):
        whole *= 1.0 / grid
    np.rint(whole, out=whole)
    if not np.isfinite(whole).all():
        cause = "too large for its noise" if np.isfinite(value).all() else "not finite"
        raise InputError(f"A statistic is {cause}: clip rows before summing them.")
    return whole
