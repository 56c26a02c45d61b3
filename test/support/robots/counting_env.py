"""A Gymnasium environment whose state tells what its body got: `counting_env:Counting-v0`.

State: steps since the reset, the seed, and the last step's action. A picture is as bright as the
steps are many. With an odd seed it succeeds after 25 steps, else never.
"""

import gymnasium
import numpy as np

SUCCEEDS_AFTER = 25
BRIGHTNESS = 2
"""Per step."""
SIZE = (24, 32)


class Counting(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._seed, self._steps, self._action = seed, 0, np.zeros(2, np.float32)
        return self._state(), {}

    def step(self, action):
        self._steps, self._action = self._steps + 1, np.array(action, np.float32)
        success = self._seed % 2 == 1 and self._steps >= SUCCEEDS_AFTER
        return self._state(), 0.0, False, False, {"success": success}

    def render(self):
        return np.full((*SIZE, 3), min(255, BRIGHTNESS * self._steps), np.uint8)

    def _state(self):
        return np.array([self._steps, self._seed, *self._action], np.float32)


gymnasium.register("Counting-v0", Counting)
