"""The learning loop: record events, collect feedback, mine examples, train, gate, promote, roll back."""
