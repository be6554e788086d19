"""How much is taken on at once, and who is next."""
