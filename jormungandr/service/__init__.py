"""The service: a gateway that keeps and serves, and one learner process per model."""
