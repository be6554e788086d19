"""Clients: `RemoteLearner`, the endpoint over HTTP, and `RemotePolicy`, in SB3's shape.

Over the standard library: an actor process needs neither torch nor an HTTP package. `Spool` lets
actors go on while the service is away, `Guard` gives them an action in time.
"""

from jormungandr.client.guard import Guard, GuardCounts
from jormungandr.client.learner import RemoteLearner
from jormungandr.client.policy import RemotePolicy
from jormungandr.client.refused import Refused
from jormungandr.client.spool import Spool

__all__ = ["Guard", "GuardCounts", "Refused", "RemoteLearner", "RemotePolicy", "Spool"]
