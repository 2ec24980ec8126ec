"""Where randomness comes from: the operating system, unless an unsafe seed is asked for by name.

Noise is drawn on a power-of-two grid that depends on its standard deviation alone, so that adding
it to a value on the same grid is exact integer arithmetic: what is released is a rounding of the
ideal Gaussian mechanism, and the low bits carry nothing else.
Guarantee: docs/proofs/floating_point.md.
"""

from __future__ import annotations

import math
import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError

Floats = NDArray[np.float64]

_GRID_BITS = 32
_CHUNK = 1 << 20


class NoiseSource(Protocol):
    """Standard normals, uniforms, and whether anyone could draw them again."""

    secure: bool
    description: str

    def normal(self, size: int) -> Floats:
        """`size` independent standard normals."""

    def uniform(self, size: int) -> Floats:
        """`size` independent uniforms in (0, 1]."""


class SystemNoise:
    """Every bit from the operating system's CSPRNG; no state is kept."""

    secure = True
    description = "operating system CSPRNG, Gaussian rounded to a power-of-two grid"

    def normal(self, size: int) -> Floats:
        """Box-Muller on 64-bit uniforms: tails reach 9.4 standard deviations."""
        half = (size + 1) // 2
        out = np.empty(2 * half)
        for start in range(0, half, _CHUNK):
            stop = min(start + _CHUNK, half)
            radius = np.sqrt(-2.0 * np.log(self.uniform(stop - start)))
            angle = (2 * math.pi) * self.uniform(stop - start)
            out[2 * start : 2 * stop : 2] = radius * np.cos(angle)
            out[2 * start + 1 : 2 * stop : 2] = radius * np.sin(angle)
        return out[:size]

    def uniform(self, size: int) -> Floats:
        """(k + ½)/2⁶⁴ for a uniform 64-bit k, rounded to the nearest double."""
        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
        return (bits.astype(np.float64) + 0.5) * 2.0**-64


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
    return np.random.SeedSequence([int(unsafe_seed), stream])


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
    return 2.0 ** (math.frexp(noise_std)[1] - 1 - _GRID_BITS)


def add_gaussian(value: Floats, noise_std: float, source: NoiseSource) -> Floats:
    """`value` + N(0, noise_std²), both rounded to `noise_grid(noise_std)` before they are added.

    A value that is not finite is an error: callers clip first.
    """
    value = np.asarray(value, dtype=np.float64)
    if not np.isfinite(value).all():
        raise InputError("A statistic is not finite: clip rows before summing them.")
    grid = noise_grid(noise_std)
    noise = np.rint(source.normal(value.size) * (noise_std / grid)).reshape(value.shape)
    released: Floats = (np.rint(value / grid) + noise) * grid
    return released
