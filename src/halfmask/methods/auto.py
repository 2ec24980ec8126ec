"""Which method to use, from public facts alone: roles, sizes, epsilon and delta, never a value."""

from __future__ import annotations

from dataclasses import dataclass

from halfmask.errors import InputError
from halfmask.table import Table, Task


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The public facts of a table."""

    rows: int
    public_features: int
    private_features: int
    label_private: bool
    task: Task
    classes: int
    epsilon: float
    delta: float

    @classmethod
    def of(cls, table: Table, *, epsilon: float, delta: float) -> Problem:
        """The facts of `table`; nothing else of it is read."""
        return cls(
            rows=table.units,
            public_features=table.public.shape[1],
            private_features=table.private.shape[1],
            label_private=table.label_private,
            task=table.task,
            classes=0 if table.classes is None else len(table.classes),
            epsilon=epsilon,
            delta=delta,
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A method's name, and why it was chosen."""

    method: str
    reason: str


def choose(problem: Problem) -> Choice:
    """The default method for `problem`; nothing private to protect is an error."""
    if not problem.label_private and problem.private_features == 0:
        raise InputError(
            "No column is private: there is nothing to protect. Mark a column or the label as "
            "private, or use an ordinary library."
        )
    if problem.private_features == 0:
        return Choice(
            method="one-shot",
            reason="only the label is private: one noisy product of features and labels carries "
            "all that training needs, and everything after it is free",
        )
    return Choice(
        method="gd",
        reason="private features take part in the model: full-batch noisy gradient descent "
        "composes exactly and needs no sampling",
    )
