"""Where randomness comes from: the operating system, unless an unsafe seed is asked for by name.

Noise is drawn on a power-of-two grid that depends on its standard deviation alone, so that adding
it to a value on the same grid is exact integer arithmetic: what is released is a rounding of the
ideal Gaussian mechanism, and the low bits carry nothing else.
Guarantee: docs/proofs/floating_point.md.
"""

from __future__ import annotations

import math
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError

Floats = NDArray[np.float64]

_GRID_BITS = 32
# Pairs of normals made at a time: their temporaries stay in the cache.
_BLOCK = 1 << 14
_SMALL = np.uint64(1 << 44)


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
        """Box-Muller, by pairs; tails reach 13 standard deviations."""
        half = (size + 1) // 2
        out = np.empty((2, half))
        blocks = [out[:, start : start + _BLOCK] for start in range(0, half, _BLOCK)]
        if len(blocks) < 4:
            for block in blocks:
                _fill_normal(block)
        else:
            with ThreadPoolExecutor(max_workers=2) as pool:
                list(pool.map(_fill_normal, blocks))
        normals: Floats = out.reshape(-1)[:size]
        return normals

    def uniform(self, size: int) -> Floats:
        """Uniforms in (0, 1], with no fewer digits near zero than elsewhere."""
        return _uniforms(np.frombuffer(ssl.RAND_bytes(8 * size), dtype=np.uint64))


def _uniforms(bits: NDArray[np.uint64]) -> Floats:
    """(k + ½)/2⁶⁴ for each 64-bit k, rounded to the nearest double; small ones get 64 bits more.

    On multiples of 2⁻⁶⁴ alone a radius beyond 7 standard deviations would come from so few values
    that a released pair could be told from its neighbour's.
    """
    values = bits.astype(np.float64)
    values += 0.5
    small = np.flatnonzero(bits < _SMALL)
    if len(small):
        more = np.frombuffer(ssl.RAND_bytes(8 * len(small)), dtype=np.uint64)
        values[small] = bits[small] + (more.astype(np.float64) + 0.5) * 2.0**-64
    values *= 2.0**-64
    return values


def _fill_normal(out: Floats) -> None:
    """Two rows of normals r·cos θ and r·sin θ, in place and with one sine each.

    θ/2 is uniform in [−π/4, π/4], so s = sin(θ/2) gives cos θ = 1 − 2s² and sin θ = 2s√(1 − s²)
    without loss of accuracy, over the half circle of positive cosines; one more random bit, below
    the precision of the angle, gives the cosine its sign.
    """
    cosine, sine = out
    bits = np.frombuffer(ssl.RAND_bytes(16 * cosine.size), dtype=np.int64)
    radius = _uniforms(bits[: cosine.size].view(np.uint64))
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle = bits[cosine.size :]
    np.multiply(angle, math.pi / 4 * 2.0**-63, out=sine)
    np.sin(sine, out=sine)
    square = sine * sine
    np.multiply(square, -2.0, out=cosine)
    cosine += 1.0
    np.copysign(cosine, (angle << 63).view(np.float64), out=cosine)
    cosine *= radius
    np.subtract(1.0, square, out=square)
    np.sqrt(square, out=square)
    square *= radius
    square *= 2.0
    sine *= square


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


def noise_source(unsafe_seed: int | None = None) -> NoiseSource:
    """The system's noise, or reproducible noise that a statement calls not private."""
    return SystemNoise() if unsafe_seed is None else UnsafeSeededNoise(unsafe_seed)


def public_generator(unsafe_seed: int | None = None) -> np.random.Generator:
    """Randomness for public choices (batches, initial weights), never shared with the noise."""
    seed = None if unsafe_seed is None else seed_sequence(unsafe_seed, 1)
    return np.random.default_rng(seed)


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
    value = np.asarray(value, dtype=np.float64)
    if not np.isfinite(value).all():
        raise InputError("A statistic is not finite: clip rows before summing them.")
    grid = noise_grid(noise_std)
    with np.errstate(over="ignore"):
        released = np.rint(value / grid)
    if not np.isfinite(released).all():
        raise InputError("A statistic is too large for its noise: clip rows before summing them.")
    noise = source.normal(value.size)
    noise *= noise_std / grid
    released += np.rint(noise, out=noise).reshape(value.shape)
    released *= grid
    return released
