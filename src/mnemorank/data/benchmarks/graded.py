"""Our `graded` format: a query, a memory and a label from 0 to 1 per line."""

from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.formats import read_graded

loaders.add(Loader("graded", "graded pairs, grouped by query; relevant from 0.5", read_graded))
