"""Let the RL Zoo train C51: `--algo c51`, and everything else as with its own algorithms."""

import rl_zoo3
import rl_zoo3.train

from jormungandr.sb3 import C51

rl_zoo3.ALGOS["c51"] = C51  # the one table that all of the zoo reads

if __name__ == "__main__":
    rl_zoo3.train.train()
