"""Training and examination of the demo policies."""
