"""Which request is served first and how often a robot may ask; wait time (Dai et al. §3.2)."""
