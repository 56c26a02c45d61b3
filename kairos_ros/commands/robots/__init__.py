"""Commands about one robot."""
