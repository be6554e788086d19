"""The learner process: what runs in it, and what its gateway starts and watches it with."""
