"""Tables, fits and machines for the tests of training on spread rows.

Run as a program under torchrun with a folder as its argument, it trains on two ranks and writes
what each of them got.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import HalfmaskError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.neural.distributed import Ranks, SharedReleaser
from halfmask.neural.pretrain import PretrainConfig
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train

N, CLASSES = 501, 3
FAST = PretrainConfig(hidden=8, networks=2, epochs=2, batch=64)
FITS: dict[str, dict[str, Any]] = {
    "gd, all private": {"method": "gd", "label": "private"},
    "gd, label public": {"method": "gd", "label": "public"},
    "gd, label alone private": {"method": "gd", "label": "private", "features": "public"},
    "one-shot, all private": {"method": "one-shot", "label": "private"},
    "one-shot, label public": {"method": "one-shot", "label": "public"},
    "one-shot, label alone private": {
        "method": "one-shot",
        "label": "private",
        "features": "public",
    },
    "dp-sgd on a network": {
        "method": "mlp",
        "label": "private",
        "options": {"recipe": "dp-sgd", "rate": 1.0, "steps": 3, "hidden": FAST.hidden},
    },
    "algorithm 1": {
        "method": "mlp",
        "label": "public",
        "options": {
            "recipe": "algorithm-1",
            "padding": "middle",
            "rate": 1.0,
            "steps": 3,
            "hidden": FAST.hidden,
        },
    },
    "default network": {"method": "mlp", "label": "public", "options": {"pretrain": FAST}},
}


def table(label: str = "public", features: str = "private") -> Table:
    """Rows of three classes that 0/1 columns and a number tell."""
    generator = np.random.default_rng(0)
    kind = generator.integers(0, CLASSES, N)
    columns: dict[str, Any] = {
        f"b{i}": (generator.random(N) < np.where(kind == i % CLASSES, 0.9, 0.1)).astype(int)
        for i in range(8)
    }
    roles = ["public"] * 3 + [features] * 5
    binary = [
        Column(name=f"b{i}", role=role, kind="category", categories=("0", "1"))  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    ]
    number = Column(name="size", role=features, kind="number", bounds=(0.0, 10.0), bins=0)  # type: ignore[arg-type]
    schema = Schema(
        label=Label(name="kind", role=label, classes=tuple(range(CLASSES))),  # type: ignore[arg-type]
        columns=(*binary, number),
    )
    frame = pa.table({**columns, "size": generator.random(N) * 10, "kind": kind})
    return Encoder.fit(schema, frame).encode(frame)


def part(whole: Table, rows: range) -> Table:
    return whole.kept(np.arange(rows.start, rows.stop))


def neighbour(whole: Table) -> Table:
    """The table with another private part of row 7."""
    private, label = whole.private.copy(), whole.label
    assert label is not None
    private[7] = (
        whole.private[np.flatnonzero((private != private[7]).any(1))[0]] if private.size else 0
    )
    if whole.label_private:
        label = label.copy()
        label[7] = (label[7] + 1) % CLASSES
    return replace(whole.with_blocks(private=private), label=label)


def fit(name: str, ranks: Any = None, *, changed: bool = False) -> dict[str, Any]:
    """Scores and epsilon of one of FITS, on all rows or on this machine's."""
    asked = FITS[name]
    rows = table(asked["label"], asked.get("features", "private"))
    rows = neighbour(rows) if changed else rows
    model = train(
        rows if ranks is None else part(rows, ranks.own(N)),
        epsilon=4.0,
        delta=1e-5,
        relation="replace",
        method=asked["method"],
        noise=noise_source(1) if ranks is None else ranks.noise(1),
        options=asked.get("options"),
        ranks=ranks,
    )
    return {
        "epsilon": model.privacy.calibrated["replace"],
        "released": list(model.privacy.released),
        "notes": list(model.privacy.notes),
        "scores": model.scores(rows).tolist(),
    }


class ThreadRanks(Ranks):
    """Machines that are threads of one process, for quick tests of what a run computes."""

    def __init__(self, rank: int, room: list[Any], meet: threading.Barrier) -> None:
        self.rank, self.count, self._room, self._meet = rank, len(room), room, meet

    def _all(self, value: np.ndarray) -> list[np.ndarray]:
        self._room[self.rank] = np.array(value, dtype=np.float64)
        self._meet.wait(timeout=60)
        held = [np.array(each) for each in self._room]
        self._meet.wait(timeout=60)
        return held

    def sum(self, value: np.ndarray) -> np.ndarray:
        return np.sum(self._all(value), axis=0)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate(self._all(rows))

    def first(self, value: np.ndarray) -> np.ndarray:
        return self._all(value)[0]

    def to_first(self, value: np.ndarray) -> np.ndarray:
        total = np.sum(self._all(value), axis=0)
        return total if self.leads else np.zeros(value.shape)


class _Silent(SharedReleaser):
    """Every release is zero, so that whatever else differs was not released."""

    def noisy(
        self, value: np.ndarray, noise_std: float, event: Any = None, what: str = ""
    ) -> np.ndarray:
        self.pay()
        return np.zeros(value.shape)


class WatchedRanks(ThreadRanks):
    """Keeps what this machine sends where no noise is added."""

    sent: list[bytes]

    def _all(self, value: np.ndarray) -> list[np.ndarray]:
        self.sent.append(np.array(value, dtype=np.float64).tobytes())
        return super()._all(value)

    def releaser(self, budget: Any, noise: Any, *, whole_plan: bool = False) -> SharedReleaser:
        return _Silent(budget, noise, self, whole_plan=whole_plan)


def traffic(name: str, *, changed: bool) -> list[list[bytes]]:
    """What two machines send each other besides the values that get noise."""

    def work(ranks: Any) -> list[bytes]:
        ranks.sent = []
        fit(name, ranks, changed=changed)
        return list(ranks.sent)

    return together(2, work, kind=WatchedRanks)


def together(
    count: int, work: Callable[[Ranks], Any], kind: type[ThreadRanks] = ThreadRanks
) -> list[Any]:
    """What `work` gives (or raises) on each of `count` machines."""
    room: list[Any] = [None] * count
    found: list[Any] = [None] * count
    meet = threading.Barrier(count)

    def run(rank: int) -> None:
        try:
            found[rank] = work(kind(rank, room, meet))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return found


def refused_charge(ranks: Ranks) -> str:
    """The error of each machine where the ledger has no room."""
    ledger = MemoryLedger(epsilon=0.1, delta=1e-5, relation="replace")
    releaser = ranks.releaser(ledger, ranks.noise(1))
    try:
        releaser.charge(GaussianEvent(replace=10.0, withhold=5.0), "too much")
    except HalfmaskError as error:
        return type(error).__name__
    return "charged"


def batches_drawn(ranks: Ranks) -> list[int]:
    """Which of 1,000 rows each machine's own randomness picks first."""
    from halfmask.mechanisms.sampling import poisson_rows

    return [int(row) for row in poisson_rows(1000, 0.02, ranks.noise(1))]


def noise_alone(ranks: Ranks | None) -> list[float]:
    """A release of zeros: the noise, which must be that of one machine."""
    ledger = MemoryLedger(epsilon=10.0, delta=1e-5, relation="replace")
    noise = noise_source(1)
    releaser = Releaser(ledger, noise) if ranks is None else ranks.releaser(ledger, ranks.noise(1))
    return [float(value) for value in releaser.noisy(np.zeros(5), 1.0)]


def main(folder: Path) -> None:
    from halfmask.neural.distributed import joined

    with joined() as ranks:
        found = {name: fit(name, ranks) for name in FITS}
        result = {
            "fits": found,
            "refused": refused_charge(ranks),
            "batch": batches_drawn(ranks),
            "noise": noise_alone(ranks),
            "gathered": ranks.gather(np.full((ranks.rank + 1, 2), ranks.rank)).tolist(),
        }
        (folder / f"rank{ranks.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
