"""What policies that see learn from: pictures, and what they show."""
