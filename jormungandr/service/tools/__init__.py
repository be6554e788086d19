"""What operators do with a data directory: verify, back up, salvage, query, export, replay."""
