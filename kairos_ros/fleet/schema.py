"""The JSON schema of a fleet file, for editors that complete and check while one writes."""

from typing import Any

from kairos_ros.fleet.fleet_file import FleetFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def fleet_schema() -> dict[str, Any]:
    """What `config/fleets/fleet.schema.json` holds. Every unknown section is a task."""
    schema = FleetFile.model_json_schema()
    return {"$schema": DIALECT, **schema, "title": "Fleet file of kairos_ros"}
