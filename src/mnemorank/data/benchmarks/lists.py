"""Our own `lists` format: a query with labelled candidates a line."""

from mnemorank.data.benchmarks.base import Loader, loaders
from mnemorank.data.records import read_lists

loaders.add(Loader("lists", "a query with labelled candidates a line", read_lists))
