"""The event store: events, signals, mined examples and deletions in SQLite or PostgreSQL."""
