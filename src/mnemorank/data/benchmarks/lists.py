"""Our own `lists` format: a query with labelled candidates a line."""

from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.examples import read_lists

loaders.add(Loader("lists", "a query with labelled candidates a line", read_lists))
