"""The learning loop: events and signals in, mined examples, gated training, promotion, rollback."""
