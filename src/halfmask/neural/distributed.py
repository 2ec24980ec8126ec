"""Training on rows that are spread over several machines of one data holder, under `torchrun`.

Every machine (a rank of torch.distributed) runs the same program on its own rows. Sums of private
values are added up on the first one, which holds the one ledger, adds noise once and hands the
result to all. No private value of a row leaves its machine; sums do, so the machines have to trust
each other. Guarantee: docs/proofs/distributed.md.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import numpy as np
import torch
from torch import distributed

from halfmask.errors import InputError, MachineLostError
from halfmask.neural.network import own_device
from halfmask.types import Floats

# How long a machine waits for the slowest one before it gives up.
_PATIENCE = timedelta(minutes=30)


class Ranks:
    """The machines of a run as `Machines`; every call is made by all of them, in the same order."""

    def __init__(self, rank: int, count: int, device: torch.device) -> None:
        self.rank = rank
        self.count = count
        self._device = device

    @property
    def leads(self) -> bool:
        """Whether this is the first machine, which holds the ledger and writes the model."""
        return self.rank == 0

    def own(self, rows: int) -> range:
        """The rows of a common file that this machine takes: near equal parts, in order."""
        if rows < self.count:
            raise InputError(f"{rows} rows cannot be shared by {self.count} machines: start fewer.")
        return range(rows * self.rank // self.count, rows * (self.rank + 1) // self.count)

    def sum(self, value: Floats) -> Floats:
        """The sum of all machines' public values."""
        with _together():
            shared = self._tensor(value)
            distributed.all_reduce(shared)
            return _array(shared)

    def gather(self, rows: Floats) -> Floats:
        """The public rows of all machines, in the order of the machines."""
        counts = np.zeros(self.count)
        counts[self.rank] = len(rows)
        with _together():
            parts = []
            for rank, count in enumerate(self.sum(counts).astype(int)):
                mine = rank == self.rank
                part = self._tensor(rows if mine else np.zeros((count, *rows.shape[1:])))
                distributed.broadcast(part, src=rank)
                parts.append(_array(part))
            return np.concatenate(parts)

    def first(self, value: Floats) -> Floats:
        """The first machine's public value."""
        with _together():
            shared = self._tensor(value)
            distributed.broadcast(shared, src=0)
            return _array(shared)

    def to_first(self, value: Floats) -> Floats:
        """The sum of all machines' private values on the first machine; zeros on the others."""
        with _together():
            total = self._tensor(value)
            distributed.reduce(total, dst=0)
            # What a reduction leaves on the other machines is a partial sum.
            return _array(total) if self.leads else np.zeros(value.shape)

    def _tensor(self, value: Floats) -> torch.Tensor:
        # In the order of its cells: machines exchange memory as it lies, and a tensor made of a
        # transposed array would lie otherwise than what the others wait for.
        return torch.tensor(np.array(value, dtype=np.float64, order="C"), device=self._device)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the other machines; leave them at the end. Uses NCCL where every rank has a GPU."""
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    before = signal.signal(signal.SIGTERM, _told_to_stop)
    try:
        with _together():
            backend = "nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=_PATIENCE)
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), device)
    except BaseException:
        # This process is about to end with its own message; torchrun need not hurry it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    else:
        signal.signal(signal.SIGTERM, before)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _told_to_stop(number: int, frame: object) -> NoReturn:
    raise MachineLostError(
        "Told to stop: another machine of this run has failed, see its message. What was charged "
        "stays charged; start all machines again."
    )


@contextmanager
def _together() -> Iterator[None]:
    """An operation that every machine has to take part in."""
    try:
        yield
    except RuntimeError:
        raise MachineLostError(
            "Another machine of this run was lost or does not answer. What was charged stays "
            "charged and the ledger is whole; start all machines again."
        ) from None


def _array(value: torch.Tensor) -> Floats:
    found: Floats = value.cpu().numpy()
    return found
