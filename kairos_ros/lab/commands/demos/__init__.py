"""Commands that start whole fleets or arms: demos and the drill."""
