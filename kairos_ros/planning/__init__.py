"""Which model on which GPU, and how often each robot may ask (Rosa §3.4). No clock, no I/O."""
