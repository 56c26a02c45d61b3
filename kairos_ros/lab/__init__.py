"""The laboratory: demos, drills, replay, virtual time, studies, reports, training, simulators."""
