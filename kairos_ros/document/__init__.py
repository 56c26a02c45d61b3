"""Files that people write, read so that every mistake is told with its place."""
