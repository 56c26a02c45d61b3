"""What a drill received, and whether it proves that nothing was harmed."""
