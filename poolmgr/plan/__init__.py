"""What to do: pure functions on the model. No I/O."""
