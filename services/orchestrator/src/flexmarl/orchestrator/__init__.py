"""The orchestrator: tasks, steps, bindings, evaluation, checkpoints."""
