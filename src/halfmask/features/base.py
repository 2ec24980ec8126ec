"""What every map of the public part can do: fit on public rows, transform rows, be stored.

A map sees public values only, so nothing it learns costs budget. Its state is a flat dictionary of
arrays, stored in an npz file without pickle.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from halfmask.errors import DataError, InputError


class FeatureMap(ABC):
    """A transformer of public rows with the manners of scikit-learn.

    A subclass stores its constructor's arguments under their own names, writes what `fit` learns to
    the attributes listed in `learnt`, and names itself by `kind`.
    """

    kind: ClassVar[str]
    learnt: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, X: np.ndarray, y: None = None) -> Self:
        """Learn from public rows; there is no label, so `y` is ignored."""

    @abstractmethod
    def transform(self, X: np.ndarray) -> np.ndarray:
        """The rows in the new coordinates, in batches where the work per row is large."""

    def fit_transform(self, X: np.ndarray, y: None = None) -> np.ndarray:
        """`fit`, then the coordinates of the same rows."""
        return self.fit(X).transform(X)

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """The names of the constructor's arguments."""
        known = inspect.signature(cls).parameters.values()
        return tuple(own.name for own in known if own.kind is own.POSITIONAL_OR_KEYWORD)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's `clone` wants them."""
        return {name: getattr(self, name) for name in self.parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor."""
        for name, value in params.items():
            if name not in self.parameters():
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}: "
                    f"expected one of {', '.join(self.parameters())}."
                )
            setattr(self, name, value)
        return self

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Kind, parameters and what was learnt, as arrays for an npz file."""
        self.check_fitted()
        arrays = {"kind": np.array(self.kind)}
        for name, value in self.get_params().items():
            if value is not None:
                arrays[f"param.{name}"] = np.asarray(value)
        for name in self.learnt:
            arrays[name] = np.asarray(getattr(self, name))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """The inverse of `to_arrays`."""
        try:
            if str(arrays["kind"]) != cls.kind:
                raise DataError(f"The stored map is not of kind {cls.kind!r}.")
            params = {
                name: _plain(arrays[f"param.{name}"]) if f"param.{name}" in arrays else None
                for name in cls.parameters()
            }
            made = cls(**params)
            for name in cls.learnt:
                setattr(made, name, np.asarray(arrays[name]))
        except KeyError as error:
            raise DataError(f"The stored map has no array {error}: train again.") from None
        return made

    def check_fitted(self) -> None:
        """Refuse to work before `fit`."""
        if any(not hasattr(self, name) for name in self.learnt):
            raise InputError(f"This {type(self).__name__} is not fitted: call fit first.")


def _plain(value: np.ndarray) -> Any:
    """A parameter as Python wrote it: a number or text, or a tuple of them."""
    listed = value.tolist()
    return tuple(listed) if isinstance(listed, list) else listed


def rows_of(X: Any, *, width: int | None = None) -> np.ndarray:
    """`X` as a 2-d array of finite float32 or float64, of `width` columns where that is known."""
    rows = np.asarray(X)
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    if rows.ndim != 2:
        raise DataError(f"Expected a 2-d array of rows, got {rows.ndim}-d.")
    if width is not None and rows.shape[1] != width:
        raise DataError(f"Expected rows of {width} values, got {rows.shape[1]}.")
    return rows


def batches(n: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


class UnitRows(FeatureMap):
    """Divide each row by its norm; a row of zeros stays.

    A statistic of such rows has the smallest sensitivity that their directions allow.
    """

    kind = "unit-rows"

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows_of(X)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        rows = rows_of(X)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled: np.ndarray = rows / np.where(norms > 0, norms, 1)
        return scaled
