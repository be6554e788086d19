"""How often the interval of an off-policy estimate holds the truth, where the truth is known."""
