"""What every process on a host needs: installed files, optional parts, signals, a ROS domain."""
