"""Where bytes live: one small protocol, and the stores that keep it."""
