"""Measuring rerankers on benchmarks: baselines, measures, significance, audits, report."""
