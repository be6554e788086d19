"""Which settings make CartPole stay solved: a base, and one change to it at a time."""
