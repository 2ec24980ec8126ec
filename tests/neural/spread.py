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

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import HalfmaskError
from halfmask.mechanisms.noise import NoiseSource, noise_source
from halfmask.mechanisms.release import Releaser, SharedReleaser
from halfmask.neural.distributed import Ranks
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
    "additive, some columns public": {"method": "additive", "label": "private", "classes": 2},
    "additive, label public": {"method": "additive", "label": "public", "classes": 2},
    "additive, label alone private": {
        "method": "additive",
        "label": "private",
        "features": "public",
        "classes": 2,
    },
    "additive, three classes": {"method": "additive", "label": "private"},
    "additive, three classes, label public": {"method": "additive", "label": "public"},
    "additive, three classes, label alone private": {
        "method": "additive",
        "label": "private",
        "features": "public",
    },
    # So large a budget that even these few rows have pairs of columns.
    "additive, pairs of columns": {
        "method": "additive",
        "label": "private",
        "classes": 2,
        "epsilon": 20_000.0,
        "together": True,
    },
    # And one with which public columns are clear enough for products of them.
    "additive, products of public columns": {
        "method": "additive",
        "label": "private",
        "features": "public",
        "classes": 2,
        "epsilon": 300.0,
    },
    "additive, a number": {"method": "additive", "label": "private", "classes": 0},
    "additive, a public number": {"method": "additive", "label": "public", "classes": 0},
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


def table(
    label: str = "public",
    features: str = "private",
    classes: int = CLASSES,
    together: bool = False,
) -> Table:
    """Rows of three classes (two, or a number) that 0/1 columns and a number tell.

    With `together` two columns tell it that say nothing one by one.
    """
    generator = np.random.default_rng(0)
    kind = generator.integers(0, CLASSES, N)
    columns: dict[str, Any] = {
        f"b{i}": (generator.random(N) < np.where(kind == i % CLASSES, 0.9, 0.1)).astype(int)
        for i in range(8)
    }
    if together:
        kind = np.where(generator.random(N) < 0.9, columns["b3"] ^ columns["b4"], kind)
    roles = ["public"] * 3 + [features] * 5
    binary = [
        Column(name=f"b{i}", role=role, kind="category", categories=("0", "1"))  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    ]
    number = Column(name="size", role=features, kind="number", bounds=(0.0, 10.0), bins=0)  # type: ignore[arg-type]
    target = Label(name="kind", role=label, bounds=(0.0, 2.0))  # type: ignore[arg-type]
    if classes:
        kind = np.minimum(kind, classes - 1)
        target = Label(name="kind", role=label, classes=tuple(range(classes)))  # type: ignore[arg-type]
    schema = Schema(label=target, columns=(*binary, number))
    frame = pa.table({**columns, "size": generator.random(N) * 10, "kind": kind})
    return Encoder.fit(schema, frame).encode(frame)


def part(whole: Table, rows: range) -> Table:
    return whole.kept(np.arange(rows.start, rows.stop))


def neighbour(whole: Table) -> Table:
    """The table with another private part of row 7."""
    private, label = whole.private, whole.label
    assert label is not None
    other = np.flatnonzero((private != private[7]).any(1)) if private.size else np.array([8])
    planted = whole.planted(np.array([7]), whole.kept(other[:1]))
    if whole.label_private:
        label = label.copy()
        label[7] = (label[7] + 1) % len(whole.classes or "012")
    return replace(planted, label=label)


def noise_of(ranks: Any) -> NoiseSource:
    """A seeded source of this machine's own: no two machines may draw the same batches."""
    return noise_source(1, machine=0 if ranks is None else ranks.rank)


def fit(name: str, ranks: Any = None, *, changed: bool = False, door: Any = None) -> dict[str, Any]:
    """Scores and epsilon of one of FITS, on all rows or on this machine's."""
    asked = FITS[name]
    rows = table(
        asked["label"],
        asked.get("features", "private"),
        asked.get("classes", CLASSES),
        asked.get("together", False),
    )
    rows = neighbour(rows) if changed else rows
    model = train(
        rows if ranks is None else part(rows, ranks.own(N)),
        Budget(epsilon=asked.get("epsilon", 4.0), delta=1e-5),
        method=asked["method"],
        noise=noise_of(ranks),
        options=asked.get("options"),
        ranks=ranks,
        make_releaser=door,
    )
    return {
        "epsilon": model.privacy.calibrated["replace"],
        "released": list(model.privacy.released),
        "notes": list(model.privacy.notes),
        "scores": model.scores(rows).tolist(),
        "pairs": model.details.get("pairs", []),
        "products": model.details.get("public_pairs", []),
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


def traffic(name: str, *, changed: bool) -> list[list[bytes]]:
    """What two machines send each other besides the values that get noise."""

    def work(ranks: Any) -> list[bytes]:
        ranks.sent = []
        fit(name, ranks, changed=changed, door=_Silent)
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
    releaser = SharedReleaser(ledger, noise_of(ranks), ranks)
    try:
        releaser.open(GaussianEvent(replace=10.0, withhold=5.0), "too much")
    except HalfmaskError as error:
        return type(error).__name__
    return "charged"


def batches_drawn(ranks: Ranks) -> list[int]:
    """Which of 1,000 rows each machine's own randomness picks first."""
    from halfmask.mechanisms.release import poisson_rows

    return [int(row) for row in poisson_rows(1000, 0.02, noise_of(ranks))]


def noise_alone(ranks: Ranks | None) -> list[float]:
    """A release of zeros: the noise, which must be that of one machine."""
    ledger = MemoryLedger(epsilon=10.0, delta=1e-5, relation="replace")
    noise = noise_of(ranks)
    releaser = Releaser(ledger, noise) if ranks is None else SharedReleaser(ledger, noise, ranks)
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
            "turned": ranks.gather(np.arange(6.0).reshape(2, 3).T + 10 * ranks.rank).tolist(),
        }
        (folder / f"rank{ranks.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
