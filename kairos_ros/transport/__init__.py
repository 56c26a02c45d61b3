"""ZeroMQ links to engine workers and the framing of what travels over them."""
