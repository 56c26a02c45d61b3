"""Which request is served first and how often a robot may ask; wait time (000 §3.2)."""
