"""Mining: turn feedback into training and held-out examples."""
