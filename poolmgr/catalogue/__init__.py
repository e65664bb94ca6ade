"""Tables for questions that no command answers: a Parquet folder, and sandboxed SQL over it."""
