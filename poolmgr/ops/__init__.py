"""The verbs: each joins a plan with stores and checks, returns facts, prints nothing."""
