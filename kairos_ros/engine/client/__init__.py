"""How a serving node reaches its engines: the local worker that it keeps alive, and remote ones."""
