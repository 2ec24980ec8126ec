"""Where a run stands, and how it goes on after it was interrupted.

A run is charged as a whole. Before each block of steps the ledger is told that it begins, after it
a checkpoint is written; a block that had begun and was lost counts as taken, so that no step is
taken twice. Without an unsafe seed no generator state is stored. With one, the states are stored
and the run goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from halfmask.errors import DataError
from halfmask.mechanisms.noise import NoiseSource, UnsafeSeededNoise, public_generator
from halfmask.model_folder import packed, unpacked
from halfmask.storage import write_durably

RunSettings = Mapping[str, float | int]
_ARRAYS = ("parameters", "velocity", "mean")


@dataclass(kw_only=True, eq=False)
class TrainingState:
    """Step, parameters, velocity, averages, and the generators of public batches and of padding."""

    step: int
    parameters: Tensor
    velocity: Tensor
    mean: Tensor
    counted: int
    public: np.random.Generator
    padding: np.random.Generator

    @classmethod
    def start(
        cls, vector: Tensor, padding: np.random.Generator, public_seed: int | None
    ) -> TrainingState:
        """The beginning; padding for private batches is drawn apart from the public batches."""
        return cls(
            step=0,
            parameters=vector.clone(),
            velocity=torch.zeros_like(vector),
            mean=torch.zeros_like(vector),
            counted=0,
            public=public_generator(public_seed),
            padding=padding,
        )

    def average(self, vector: Tensor, aggregate: str, decay: float, steps: int) -> None:
        """Take the parameters after a step into the average that is asked for."""
        if aggregate == "last" or (aggregate == "tail" and self.step <= steps // 2):
            return
        self.counted += 1
        share = 1.0 / self.counted
        if aggregate == "ema":
            share = max(share, 1.0 - decay)
        self.mean.lerp_(vector, share)

    def result(self, vector: Tensor) -> Tensor:
        """The average, or the last parameters where there is none."""
        return self.mean if self.counted else vector


class Checkpoint:
    """A file that holds a run; `every` steps are begun and saved together."""

    def __init__(self, path: str | Path, *, every: int) -> None:
        self._path = Path(path)
        self.every = every

    @classmethod
    def of_run(cls, path: str | Path, steps: int) -> Checkpoint:
        """A file for a run of so many steps: an interruption loses an eighth of them at most."""
        return cls(path, every=-(-steps // 8))

    def save(self, progress: TrainingState, noise: NoiseSource, settings: RunSettings) -> None:
        """Replace the file at once: an interruption leaves the old one or the new one."""
        state: dict[str, Any] = {"step": progress.step, "counted": progress.counted}
        state["settings"] = settings
        if isinstance(noise, UnsafeSeededNoise):
            state["noise"] = _plain(noise.state)
            state["public"] = _plain(progress.public.bit_generator.state)
            state["padding"] = _plain(progress.padding.bit_generator.state)
        arrays = {name: getattr(progress, name).cpu().numpy() for name in _ARRAYS}
        write_durably(self._path, packed(state, arrays), mode=0o666)

    def load(
        self, progress: TrainingState, noise: NoiseSource, settings: RunSettings
    ) -> TrainingState:
        """Where the file left off; `progress` itself where there is no file."""
        if not self._path.exists():
            return progress
        try:
            state, arrays = unpacked(self._path.read_bytes(), self._path.name)
            if any(state["settings"][name] != value for name, value in settings.items()):
                raise ValueError
            for name in _ARRAYS:
                getattr(progress, name).copy_(torch.from_numpy(arrays[name]))
            progress.step, progress.counted = int(state["step"]), int(state["counted"])
        except (OSError, ValueError, KeyError, RuntimeError):
            raise DataError(
                f"The checkpoint {str(self._path)!r} is damaged or of another training: use the "
                "same rows, schema and options as before, or remove it to start over."
            ) from None
        if isinstance(noise, UnsafeSeededNoise) and "noise" in state:
            noise.state = _arrays(state["noise"])
            progress.public.bit_generator.state = _arrays(state["public"])
            progress.padding.bit_generator.state = _arrays(state["padding"])
        return progress


def _plain(value: Any) -> Any:
    """Generator states hold arrays and numpy integers, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": [int(item) for item in value], "dtype": str(value.dtype)}
    return int(value) if isinstance(value, np.integer) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"array", "dtype"}:
        return np.array(value["array"], dtype=value["dtype"])
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value
