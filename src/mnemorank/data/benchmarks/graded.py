"""Our own `graded` format: a query, a memory and a label from 0 to 1 a line."""

from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.examples import read_graded

loaders.add(Loader("graded", "graded pairs, gathered by query; relevant from .5", read_graded))
