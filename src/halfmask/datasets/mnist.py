"""MNIST in IDX format."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from halfmask.datasets.files import Split, read_published
from halfmask.errors import DataError

_UNSIGNED_BYTE = 8


def load_mnist(folder: str | Path | None = None) -> Split:
    """60,000 and 10,000 rows of 784 pixels 0..255 (uint8), and digits (int64)."""
    parts = {}
    for part in ("train", "t10k"):
        images = read_idx(read_published(folder, f"mnist-{part}-images-idx3-ubyte"))
        labels = read_idx(read_published(folder, f"mnist-{part}-labels-idx1-ubyte"))
        parts[part] = (images.reshape(len(images), -1), labels.astype(np.int64))
    (x_train, y_train), (x_test, y_test) = parts["train"], parts["t10k"]
    return Split(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def read_idx(content: bytes) -> np.ndarray:
    """An array of bytes in IDX format: two zeros, the type, the rank, the sizes, the values."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError("Not an IDX file of bytes: fetch it again.")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError("An IDX file is cut off: fetch it again.")
    shape = struct.unpack(f">{rank}I", content[4:start])
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != int(np.prod(shape)):
        raise DataError("An IDX file does not hold as many values as it says: fetch it again.")
    return values.reshape(shape)
