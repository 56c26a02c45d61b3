"""Training and examination of the embedded judge."""
