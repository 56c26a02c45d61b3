"""How far a chunk is executed: policies, what calibration found, and what load asks for."""
