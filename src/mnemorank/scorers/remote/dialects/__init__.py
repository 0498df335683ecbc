"""The HTTP dialects of remote rerankers, one file each. To add one: write a file like `tei.py` and name it here."""

from mnemorank.scorers.remote.dialects import cohere, jina, litellm, tei, vllm, voyage
from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects

__all__ = ["Ask", "Dialect", "cohere", "dialects", "jina", "litellm", "tei", "vllm", "voyage"]
