"""The errors a caller can meet. Each message names what is wrong, where, and the way out."""


class MnemorankError(Exception):
    """Base of every error mnemorank raises on purpose."""


class InputError(MnemorankError, ValueError):
    """A query, memory, date, file or option is not what it should be."""


class QueryTooLongError(InputError):
    """The query leaves a memory no room in the model's input.

    :param tokens: what the query takes, with all that stands around it.
    :param most: what the model reads in all.
    """

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(f"query: its {tokens} tokens leave no room for a memory in the model's {most}; shorten it")
        self.tokens = tokens
        self.most = most


class ArtefactError(MnemorankError):
    """A model folder cannot be used: missing or damaged file, bad manifest, unknown name."""


class ScorerError(MnemorankError):
    """A model failed to score. The pipeline answers with the first-stage order instead."""


class MissingExtraError(MnemorankError, ImportError):
    """An optional dependency is needed. The message says which extra to install."""


class ProbeWarning(UserWarning):
    """A model gets pairs wrong that any working reranker gets right. The message names the likely cause."""
