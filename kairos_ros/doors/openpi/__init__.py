"""The dialect of openpi: msgpack with NumPy arrays over a WebSocket."""
