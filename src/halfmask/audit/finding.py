"""What an audit found: the claim, the lower bound, and whether the one refutes the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfmask.accounting.budget import printed, printed_room
from halfmask.accounting.relations import Relation


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`lower_bound` holds with probability `confidence`; above `claimed` it refutes the claim."""

    mechanism: str
    claimed: float
    lower_bound: float
    confidence: float
    relation: Relation
    delta: float
    runs: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, up to the confidence."""
        return self.lower_bound > self.claimed

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return {
            "mechanism": self.mechanism,
            "claimed": self.claimed,
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "relation": self.relation,
            "refuted": self.refuted,
            "delta": self.delta,
            "runs": self.runs,
            **self.details,
        }

    def text(self) -> str:
        """The finding in words."""
        verdict = "REFUTED: what was seen contradicts the claim."
        if not self.refuted:
            found = "no leak (lower bound 0)" if self.lower_bound <= 0 else "less than is claimed"
            verdict = f"The attack found {found}; this does not prove the claim."
        return (
            f"{self.mechanism}: claimed epsilon {printed(self.claimed)} at delta {self.delta:g} "
            f"({self.relation}); at least {printed_room(self.lower_bound)} with confidence "
            f"{self.confidence:g} after {self.runs} run{'s' * (self.runs != 1)}. {verdict}"
        )
