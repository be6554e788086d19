"""How well agents learn: ours beside Stable-Baselines3's, on the same tasks by the same harness."""
