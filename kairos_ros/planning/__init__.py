"""Which model on which GPU, and how often each robot may ask (001 §3.4). Pure: no clock, no I/O."""
