"""The learner: a synchronous state machine that reads rows and makes numbered policies (torch)."""

from jormungandr.learner.learner import Learner

__all__ = ["Learner"]
