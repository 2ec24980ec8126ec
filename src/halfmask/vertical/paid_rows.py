"""Where vertical methods find the noise of batches of rows; it is drawn in mechanisms."""

from halfmask.mechanisms.paid_rows import PaidRows, Rows, batch_of

__all__ = ["PaidRows", "Rows", "batch_of"]
