"""Data for training and evaluation: our own record formats, and the loaders of public benchmarks."""
