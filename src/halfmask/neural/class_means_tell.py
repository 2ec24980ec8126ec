"""Whether means of the private columns by class say enough, from counts alone.

Means by class tell nothing of relations between columns. Of few columns of different kinds, as in
most tables of people, relations matter, and steps of a model learn them; of many columns of one
kind class means serve, unless public columns show otherwise (neural.warm_start). Rows are not
counted: every machine has to come to the same answer.

Held-out rows of Adult, 3,000 and 20,000 for training, accuracy at epsilon 1 (two draws):

| predicted from columns half public | class means | warm start | gd |
|---|---|---|---|
| marital status, 7 classes | 0.789, 0.766 | 0.762, 0.815 | 0.812, 0.835 |
| occupation, 14 classes | 0.320, 0.320 | 0.332, 0.348 | 0.293, 0.335 |

and on held-out rows of Location-30 (372 private columns, 30 classes, epsilon 8) 0.69 by class means
against 0.43 for gd.
"""

from __future__ import annotations

from halfmask.neural.inputs import MANY_COLUMNS


def class_means_tell(*, private_columns: int, classes: int) -> bool:
    """Whether to release class means, unless public columns show that they leave out too much."""
    return classes > 2 and private_columns >= MANY_COLUMNS
