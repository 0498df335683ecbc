"""Our `lists` format: a query with labeled candidates per line."""

from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.formats import read_lists

loaders.add(Loader("lists", "queries with labeled candidates", read_lists))
