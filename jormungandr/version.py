"""The one place where the version is written; packaging, `/v1/info` and checkpoints read it."""

__version__ = "0.1.0"
