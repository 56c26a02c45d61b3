"""One module per family of policies: how its steps are read, and what it needs to be served."""

from importlib import import_module

from kairos_ros.engine.policies.sampler import FamilyCode
from kairos_ros.engine.policies.served import FAMILIES


def family_code(kind: str) -> FamilyCode:
    """Of a served type; of any other, what serves the policies of plugins."""
    module = FAMILIES[kind].module if kind in FAMILIES else "plugin"
    code: FamilyCode = import_module(f"{__name__}.{module}").CODE
    return code
