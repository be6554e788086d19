"""`doctor`: what is wrong with an installation, a data directory, a service, a model."""
