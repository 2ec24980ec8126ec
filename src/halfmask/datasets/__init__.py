"""Data sets: the embedded Adult census, and checked loaders of published files.

A folder of published files is passed, or named by HALFMASK_DATA.
"""

from halfmask.datasets.adult import load_adult, load_adult_files
from halfmask.datasets.binary_tables import load_location30, load_purchase100
from halfmask.datasets.files import Split
from halfmask.datasets.libsvm import load_a9a, load_gisette, load_gisette_rebuilt
from halfmask.datasets.mnist import load_mnist
from halfmask.datasets.people import load_people

__all__ = [
    "Split",
    "load_a9a",
    "load_adult",
    "load_adult_files",
    "load_gisette",
    "load_gisette_rebuilt",
    "load_location30",
    "load_mnist",
    "load_people",
    "load_purchase100",
]
