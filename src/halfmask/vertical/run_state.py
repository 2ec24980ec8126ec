"""The coordinator's side of a run on disk: enough to go on after the last finished round."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from halfmask.errors import DataError
from halfmask.vertical.admm import AdmmState, Round
from halfmask.vertical.store import write_durably


def save_state(path: Path, state: AdmmState) -> None:
    """Store z, dual, shares and history."""
    head = {
        "rho": state.rho,
        "run": state.run,
        "history": [{**asdict(r), "watched": dict(r.watched)} for r in state.history],
    }
    shares = {f"share/{name}": share for name, share in state.shares.items()}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        head=np.array(json.dumps(head)),
        z=state.z,
        dual=state.dual,
        **shares,  # type: ignore[arg-type]
    )
    write_durably(path, buffer.getvalue())


def load_state(path: Path, parties: tuple[str, ...]) -> AdmmState | None:
    """The stored state, or nothing if there is none; other parties than these are an error."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as held:
        head = json.loads(str(held["head"]))
        shares = {k.removeprefix("share/"): held[k] for k in held.files if k.startswith("share/")}
        z, dual = held["z"], held["dual"]
    if set(shares) != set(parties):
        raise DataError(
            f"The stored run in {path.parent} has other parties: choose another folder."
        )
    return AdmmState(
        z=z,
        dual=dual,
        shares={name: shares[name] for name in parties},
        rho=float(head["rho"]),
        run=str(head["run"]),
        history=[Round(**record) for record in head["history"]],
    )
