"""What a fleet says of itself: messages as events, and the state that they add up to."""
