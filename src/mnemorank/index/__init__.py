"""A store of memories that is searched without a retriever."""
