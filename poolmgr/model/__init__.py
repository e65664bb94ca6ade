"""What things are: frozen dataclasses and the rules for reading them. No I/O."""
