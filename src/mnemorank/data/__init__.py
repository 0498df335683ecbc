"""Data for training and evaluation: our formats, data sources, benchmarks, hard negatives and teachers."""
