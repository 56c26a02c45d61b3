"""The horizon policies that requests have named so far."""

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.horizon import HorizonPolicy
from kairos_ros.serving.exchange import Refusal
from kairos_ros.serving.options import ServingOptions

KEPT = 1000
"""More different texts than this are no policies, but somebody's mischief."""


class Horizons:
    """Builds each policy once."""

    def __init__(self, options: ServingOptions) -> None:
        self._options = options
        self._known: dict[str, HorizonPolicy] = {}

    def of(self, text: str) -> HorizonPolicy | Refusal:
        """The policy that `text` names, or why there is none."""
        if text not in self._known:
            if len(self._known) >= KEPT:
                self._known.clear()
            try:
                self._known[text] = self._options.parse_horizon(text)
            except ConfigError as error:
                return Refusal(RefusalCode.BAD_HORIZON_POLICY, str(error))
        return self._known[text]
