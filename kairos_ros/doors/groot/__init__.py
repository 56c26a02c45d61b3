"""The dialect of Isaac-GR00T's PolicyClient: msgpack over a ZeroMQ request socket."""
