"""Commands about fleet files, their plans and running fleets."""
