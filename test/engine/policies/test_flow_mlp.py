"""The flow-matching MLP is a LeRobot policy like any other, and a fair one to its batch-mates."""

import numpy as np
import pytest

pytest.importorskip("lerobot")

import torch
from lerobot.configs import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy, UnknownInstructionError

pytestmark = pytest.mark.slow

STATE, ACTION = 6, 3
TASKS = ["open the drawer", "open the door"]


def config(**changes):
    return FlowMLPConfig(
        device="cpu",
        instructions=TASKS,
        width=32,
        blocks=2,
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (STATE,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        **changes,
    )


@pytest.fixture
def policy():
    torch.manual_seed(0)
    policy = FlowMLPPolicy(config())
    for block in policy.model.blocks:  # zero at the start of training, so they would hide errors
        torch.nn.init.normal_(block.out.weight, std=0.1)
    return policy.eval()


def batch(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation.state": torch.randn(rows, STATE, generator=generator),
        "task": [TASKS[i % 2] for i in range(rows)],
    }


def noise(rows, seed=2):
    return torch.randn(rows, 50, ACTION, generator=torch.Generator().manual_seed(seed))


class Tap:
    def __init__(self):
        self.updates = []

    def is_debug_enabled(self):
        return True

    def track(self, *, time, x_t, v_t):
        self.updates.append(-v_t / 10)


def test_lerobots_factories_reload_it_bit_for_bit(policy, tmp_path):
    stats = {
        "observation.state": {"mean": torch.arange(6.0), "std": torch.full((6,), 2.0)},
        "action": {"mean": torch.tensor([1.0, 2.0, 3.0]), "std": torch.tensor([0.5, 1.0, 2.0])},
    }
    before, after = make_pre_post_processors(policy.config, dataset_stats=stats)
    for part in (policy, before, after):
        part.save_pretrained(tmp_path)
    raw = batch(3)
    expected = after(policy.predict_action_chunk(before(raw), noise=noise(3)))

    saved = PreTrainedConfig.from_pretrained(tmp_path)
    loaded = get_policy_class(saved.type).from_pretrained(tmp_path, strict=True)
    before, after = make_pre_post_processors(loaded.config, pretrained_path=str(tmp_path))

    assert loaded.config.instructions == TASKS
    assert torch.equal(after(loaded.predict_action_chunk(before(raw), noise=noise(3))), expected)
    assert expected.shape == (3, 50, ACTION)


def test_the_tapped_updates_add_up_to_the_chunk_and_do_not_change_it(policy):
    untapped = policy.predict_action_chunk(batch(4), noise=noise(4))
    tap = policy.model.rtc_processor = Tap()
    chunk = policy.predict_action_chunk(batch(4), noise=noise(4))
    assert torch.equal(chunk, untapped)
    assert len(tap.updates) == 10
    torch.testing.assert_close(noise(4) + sum(tap.updates), chunk, atol=1e-5, rtol=0)


def test_a_chunk_does_not_depend_on_batch_mates(policy):
    together = policy.predict_action_chunk(batch(16), noise=noise(16))
    everyone = batch(16)
    for row in (0, 7, 15):
        alone = {
            "observation.state": everyone["observation.state"][row : row + 1],
            "task": everyone["task"][row : row + 1],
        }
        chunk = policy.predict_action_chunk(alone, noise=noise(16)[row : row + 1])
        torch.testing.assert_close(chunk[0], together[row], atol=1e-5, rtol=0)


def test_state_instruction_noise_and_step_count_all_matter(policy):
    base = policy.predict_action_chunk(batch(1), noise=noise(1))
    other_task = batch(1) | {"task": [TASKS[1]]}
    assert not torch.allclose(policy.predict_action_chunk(other_task, noise=noise(1)), base)
    assert not torch.allclose(policy.predict_action_chunk(batch(1, seed=9), noise=noise(1)), base)
    assert not torch.allclose(policy.predict_action_chunk(batch(1), noise=noise(1, seed=9)), base)
    assert not torch.equal(policy.predict_action_chunk(batch(1), noise=noise(1), num_steps=5), base)


def test_an_unknown_instruction_is_refused_with_the_known_ones(policy):
    with pytest.raises(UnknownInstructionError, match=r"'fold the towel'.*'open the drawer'"):
        policy.predict_action_chunk(batch(1) | {"task": ["fold the towel"]})


@pytest.mark.parametrize("instructions", [[], ["open the door", "open the door"]])
def test_a_config_without_a_proper_list_of_instructions_is_refused(instructions):
    broken = config()
    broken.instructions = instructions
    with pytest.raises(ConfigError, match="instructions"):
        FlowMLPPolicy(broken)


def test_masked_positions_do_not_enter_the_loss(policy):
    data = batch(8) | {
        "action": torch.randn(8, 50, ACTION),
        "action_is_pad": torch.arange(50).expand(8, 50) >= 20,
    }
    torch.manual_seed(3)
    loss, _ = policy.forward(data)
    torch.manual_seed(3)
    loss.backward()
    gradient = policy.model.write.weight.grad.view(50, ACTION, -1)
    assert gradient[:20].abs().sum() > 0
    assert gradient[20:].abs().sum() == 0


def test_it_learns_to_answer_the_instruction():
    torch.manual_seed(0)
    policy = FlowMLPPolicy(config())
    optimizer = torch.optim.AdamW(policy.get_optim_params(), 3e-3)
    target = {TASKS[0]: 1.0, TASKS[1]: -1.0}
    for _ in range(300):
        data = batch(64, seed=int(torch.randint(10**6, ())))
        wanted = torch.tensor([target[text] for text in data["task"]])
        data["action"] = wanted[:, None, None].expand(64, 50, ACTION)
        data["action_is_pad"] = torch.zeros(64, 50, dtype=torch.bool)
        loss, _ = policy.forward(data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chunk = policy.predict_action_chunk(batch(32), noise=noise(32)).mean((1, 2)).numpy()
    np.testing.assert_allclose(chunk, [1.0, -1.0] * 16, atol=0.5)


def test_select_action_plays_a_chunk_action_by_action(policy):
    torch.manual_seed(5)
    played = [policy.select_action(batch(2), noise=noise(2)) for _ in range(3)]
    chunk = policy.predict_action_chunk(batch(2), noise=noise(2))
    torch.testing.assert_close(torch.stack(played, 1), chunk[:, :3])
    policy.reset()
    torch.testing.assert_close(policy.select_action(batch(2), noise=noise(2)), chunk[:, 0])


def test_a_network_narrower_than_its_chunks_learns_them_where_it_predicts_actions():
    torch.manual_seed(0)
    policy = FlowMLPPolicy(config(predicts="actions"))  # 32 numbers wide, chunks have 150
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    to_chunk = torch.randn(STATE, 50 * ACTION) / STATE**0.5
    for step in range(80):
        rows = batch(64, seed=step)
        rows["action"] = (rows["observation.state"] @ to_chunk).view(-1, 50, ACTION)
        rows["action_is_pad"] = torch.zeros(64, 50, dtype=torch.bool)
        loss, _ = policy.forward(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows = batch(64, seed=99_999)
    wanted = (rows["observation.state"] @ to_chunk).view(-1, 50, ACTION)
    error = (policy.predict_action_chunk(rows, noise(64)) - wanted).square().mean()
    assert error < 0.1 * wanted.square().mean()


def test_what_the_network_tells_must_be_known():
    with pytest.raises(ConfigError, match="'noise'; choose velocity or actions"):
        FlowMLPPolicy(config(predicts="noise"))
