"""The only place that prints, asks and exits."""
