"""The request that most tests ask."""

QUERY = "where does ruby work now"
POOL = ["the cat", "ruby work at aurora", "a dog in berlin", "ruby now"]
