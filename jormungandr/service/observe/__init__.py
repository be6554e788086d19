"""What a service says of itself: figures for Prometheus, its log, events."""
