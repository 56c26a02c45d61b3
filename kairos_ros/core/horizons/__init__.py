"""How far a chunk is executed: horizon policies, calibrated horizons, and floors under load."""
