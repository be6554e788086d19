"""How fast we are, beside peers and hand-written limits that are measured in the same run."""
