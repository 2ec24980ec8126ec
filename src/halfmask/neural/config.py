"""Options of `mlp`, fixed before a private value is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from halfmask.errors import InputError
from halfmask.neural.pretrain import PretrainConfig

Recipe = Literal["default", "algorithm-1", "dp-sgd"]


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """Options of `mlp`; None means: from public facts.

    `release_share` is the part of the budget (of μ²) that pays for the release; steps and learning
    rate of the default recipe are those of the correction, of the others those of the network.
    """

    recipe: Recipe = "default"
    padding: str | None = None
    release_share: float | None = None
    steps: int | None = None
    rate: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    alpha: float = 1.0
    private_norm: float | None = None
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    public_seed: int | None = 0

    def __post_init__(self) -> None:
        if self.recipe not in ("default", "algorithm-1", "dp-sgd"):
            raise InputError(
                f"Unknown recipe {self.recipe!r}: expected default, algorithm-1 or dp-sgd."
            )
        if self.padding is not None and self.recipe != "algorithm-1":
            raise InputError(
                f"padding={self.padding!r} belongs to the recipe algorithm-1: pass "
                "recipe='algorithm-1', or leave padding out."
            )
        for name in ("steps", "rate", "clip_norm", "learning_rate", "alpha", "private_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"Expected {name}={value} to be positive and finite.")
        if self.release_share is not None and not 0 < self.release_share < 1:
            raise InputError(f"Expected release_share in (0, 1), got {self.release_share}.")

    @classmethod
    def of(cls, options: dict[str, Any]) -> MlpConfig:
        """From options by name; an unknown one is an error that lists those there are."""
        try:
            return cls(**options)
        except TypeError:
            known = ", ".join(cls.__dataclass_fields__)
            raise InputError(
                f"Unknown option among {', '.join(sorted(options))}: expected some of {known}."
            ) from None
