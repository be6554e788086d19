"""The journal of a model: its database, the one writer, readers, and group commits."""
