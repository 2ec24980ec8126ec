"""Settings of `mlp`, one configuration per recipe, fixed before a private value is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from halfmask.errors import InputError, check_below_one, check_positive
from halfmask.methods.sgd import Schedule, SgdAggregate
from halfmask.neural.padding import PaddingName
from halfmask.neural.pretrain import PretrainConfig

RegulariserName = Literal["none", "reconstruct", "decorrelate"]
StartName = Literal["random", "neighbours"]
RegulariserFunction = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """Private steps over all rows that correct the scores of a released model.

    None means: from public facts.
    """

    steps: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "steps", "clip_norm", "learning_rate")
        check_below_one(self, "momentum")


@dataclass(frozen=True, kw_only=True)
class StepsConfig:
    """Private steps of a whole network on Poisson batches; None means: from public facts."""

    steps: int | None = None
    rate: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_positive(self, "steps", "rate", "clip_norm", "learning_rate")
        check_below_one(self, "momentum")


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """The default recipe, which chooses by public facts what to do; each way has its settings.

    `release_share` is the part of the budget (of μ²) that pays for a release of class means (None:
    from public facts), `pretrain` trains networks on it and `correction` mends their scores.
    `warm_start` are the private steps that start from public columns, `network` those from nothing
    (DP-SGD, where the label is private or nothing is public).
    """

    method: ClassVar[str] = "mlp"
    recipe: ClassVar[str] = "default"

    release_share: float | None = None
    private_norm: float | None = None
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    warm_start: StepsConfig = field(default_factory=StepsConfig)
    network: StepsConfig = field(default_factory=StepsConfig)
    public_seed: int | None = 0

    def __post_init__(self) -> None:
        check_positive(self, "private_norm")
        if self.release_share is not None and not 0 < self.release_share < 1:
            raise InputError(f"Expected release_share in (0, 1), got {self.release_share}.")


@dataclass(frozen=True, kw_only=True)
class NetworkDpSgdConfig:
    """DP-SGD on a network: everything counts as private. None means: from public facts.

    `rate` is the chance of a row to take part in a step, `radius` that of the ball to which all
    weights are projected (None: not at all), `private_norm` the longest private part of a row.
    """

    method: ClassVar[str] = "mlp"
    recipe: ClassVar[str] = "dp-sgd"

    hidden: int = 300
    steps: int | None = None
    rate: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    schedule: Schedule = "cosine"
    momentum: float = 0.9
    radius: float | None = None
    aggregate: SgdAggregate = "ema"
    ema_decay: float = 0.9
    private_norm: float | None = None
    public_seed: int | None = 0

    def __post_init__(self) -> None:
        positive = ("hidden", "steps", "rate", "clip_norm", "learning_rate", "radius")
        check_positive(self, *positive, "private_norm")
        check_below_one(self, "momentum", "ema_decay")

    @classmethod
    def of(cls, config: MlpConfig) -> NetworkDpSgdConfig:
        """What the default recipe takes where it comes to DP-SGD."""
        return cls(
            hidden=config.pretrain.hidden,
            private_norm=config.private_norm,
            public_seed=config.public_seed,
            **vars(config.network),
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm1Config(NetworkDpSgdConfig):
    """Algorithm 1 of the feature-DP paper: DP-SGD on what the public loss does not say.

    `padding` fills in private columns (halfmask.neural.padding); `release_share` is the part of the
    budget (of μ²) for a padding that has to be paid for. `alpha` weighs the private part against
    the public one, whose gradient is over `public_batch` rows. `regulariser` is a further public
    loss times `regulariser_weight`: by name (halfmask.neural.method), or a function of the
    network and padded rows. Where the label is private, the public loss has none. `span` keeps of
    the noisy gradients by the first layer's weights what lies in that many principal directions of
    the public features (None: all of it). `start` gives the first layer: drawn at random, or learnt
    from the public columns alone (halfmask.neural.method).
    """

    recipe: ClassVar[str] = "algorithm-1"

    padding: PaddingName = "gaussian"
    release_share: float | None = None
    alpha: float = 1.0
    public_batch: int | None = None
    regulariser: RegulariserName | RegulariserFunction = "none"
    regulariser_weight: float = 1.0
    span: int | None = None
    start: StartName = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "alpha", "public_batch", "regulariser_weight", "span")
        if self.release_share is not None and not 0 < self.release_share < 1:
            raise InputError(f"Expected release_share in (0, 1), got {self.release_share}.")
