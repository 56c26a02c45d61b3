"""The demo of many arms, the factory, and the demos of single arms."""
