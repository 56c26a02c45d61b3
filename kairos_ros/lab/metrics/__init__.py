"""What is computed from runs: service levels, stalls, reactions, obligations."""
