"""URDF, kinematics, and the arms that are known by name."""
