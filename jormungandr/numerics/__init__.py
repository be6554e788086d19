"""Pure functions: arrays in, arrays out; `categorical` and `returns` use torch, the rest NumPy."""
