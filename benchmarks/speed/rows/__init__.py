"""What is measured: a row a file."""
