"""The query that most tests use."""

QUERY = "where does ruby work now"
POOL = ["the cat", "ruby work at aurora", "a dog in berlin", "ruby now"]
