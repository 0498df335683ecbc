"""Everything between the model's raw scores and the final ranking."""
