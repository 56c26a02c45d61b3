"""Commands about engines, what they serve and their keys."""
