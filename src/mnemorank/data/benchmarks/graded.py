"""Our own `graded` format: a query, a memory and a label from 0 to 1 a line."""

from mnemorank.data.benchmarks.base import Loader, loaders
from mnemorank.data.records import read_graded

# A teacher's .2 says "on topic, no answer": such pairs weigh in NDCG but are not relevant in MAP.
loaders.add(Loader("graded", "graded pairs, gathered by query; relevant from .5", read_graded, relevant_from=0.5))
