"""Which policy types are served, and what has to be known of them before anything is loaded.

The code of a family is a module of `families/`; this table names it. Imports no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

Config = Mapping[str, Any]
"""A saved config.json."""


Steps = Sequence[Mapping[str, Any]]
"""Of a saved preprocessor."""
Overrides = Mapping[str, Mapping[str, Any]]
"""Step of a preprocessor -> what replaces its saved configuration, by field."""
TOKENIZER = ("tokenizer_processor", "tokenizer_name")


def _never(_config: Config) -> bool:
    return False


def _always(_config: Config) -> bool:
    return True


def _as_saved(_config: Config) -> Overrides:
    return {}


def _no_objection(_config: Config, _steps: Steps) -> str:
    return ""


def _none(_config: Config) -> int:
    return 0


def _keeps_pixels(config: Config) -> bool:
    """A picture resized before it is normalised is not the same as one resized after."""
    modes = config.get("normalization_mapping") or {}
    return bool(modes.get("VISUAL", "IDENTITY") == "IDENTITY")


def _smolvla_resizes(config: Config) -> bool:
    return _keeps_pixels(config) and config.get("resize_imgs_with_padding", True) is not None


def _xvla_resizes(config: Config) -> bool:
    return _keeps_pixels(config) and config.get("resize_imgs_with_padding") is not None


def _eo1_objection(config: Config, _steps: Steps) -> str:
    saved = isinstance(config.get("vlm_config"), Mapping)
    return "" if saved else "its config.json has no vlm_config, which says how large it is"


def _groot_objection(config: Config, _steps: Steps) -> str:
    if not isinstance(config.get("base_model_path"), str):
        return "its config.json has no base_model_path"
    return "" if find_spec("tree") else "it needs dm-tree; install it, or 'lerobot[groot]'"


def _lingbot_keyframes(config: Config) -> int:
    return 4 * int(config.get("frame_chunk_size", 4))


def _lingbot_objection(config: Config, _steps: Steps) -> str:
    if not isinstance(config.get("wan_pretrained_path"), str):
        return "its config.json has no wan_pretrained_path"
    per_frame = config.get("action_per_frame", 4)
    if type(per_frame) is not int or per_frame < 4 or per_frame % 4:
        return f"action_per_frame is {per_frame!r:.40}; its VAE needs a multiple of 4"
    if config.get("attn_mode", "torch") == "flex":
        return "attn_mode is flex, which is for training; save it with torch"
    return ""


def _molmoact2_writes(config: Config) -> bool:
    """Then its preprocessor reads a tokenizer for actions, which serving does not use."""
    return bool(config.get("action_mode", "both") != "continuous")


def _pi0_fast_overrides(config: Config) -> Overrides:
    """Every tokenizer is the one that the policy reads, too, and none brings code."""
    text = config.get("text_tokenizer_name")
    return {
        "action_tokenizer_processor": {
            "action_tokenizer_name": config.get("action_tokenizer_name"),
            "paligemma_tokenizer_name": text,
            "trust_remote_code": False,
        },
        TOKENIZER[0]: {TOKENIZER[1]: text},
    }


def _pi0_fast_objection(config: Config, _steps: Steps) -> str:
    names = ("text_tokenizer_name", "action_tokenizer_name")
    missing = [name for name in names if not isinstance(config.get(name), str)]
    return f"its config.json has no {missing[0]}" if missing else ""


def _vla_jepa_world(config: Config) -> bool:
    return bool(config.get("enable_world_model", True))


def _xvla_objection(config: Config, steps: Steps) -> str:
    for step in steps:
        padding = step.get("config", {}).get("padding", "max_length")
        if step.get("registry_name") == TOKENIZER[0] and padding != "max_length":
            return (
                f"its tokenizer pads to {padding!r:.40}, and X-VLA attends to padding: robots in "
                "one batch would change each other's actions; save it with pad_language_to "
                "max_length"
            )
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """What a policy is built on and its own folder does not hold."""

    file: str
    """That tells whether it is there."""
    field: str = ""
    """Of config.json, that names its folder or hub id."""
    repository: str = ""
    """Where LeRobot itself names it and there is no field."""
    needed: Callable[[Config], bool] = _always
    """Whether a policy of this configuration is built on it."""

    def named(self, config: Config) -> str:
        """Its folder or hub id; empty: the policy does not name or need it."""
        if not self.needed(config):
            return ""
        name = config.get(self.field, "") if self.field else self.repository
        return name if isinstance(name, str) else ""


@dataclass(frozen=True, slots=True)
class Family:
    """What is known of a policy type by its name and its config.json."""

    module: str
    """Of `families/`."""
    resizes: Callable[[Config], bool] = _never
    """Whether the policy itself resizes whatever size of picture it gets, keeping the aspect. Such
    a policy also does without some of its cameras."""
    parts: tuple[Part, ...] = ()
    packages: tuple[str, ...] = ()
    """What it imports beside LeRobot's extras that are installed here; `extra` has them."""
    extra: str = ""
    """Of LeRobot's."""
    steps: frozenset[str] = frozenset()
    """Processor steps of its own, that compute on what they are given and load nothing but the
    tokenizer."""
    tokenizer: tuple[str, str] = TOKENIZER
    """The step that reads the tokenizer, and the field of it which names its folder or hub id."""
    publisher: str = ""
    """Where LeRobot lets what the policy is built on bring code of its own: the only one on the hub
    whose repositories are accepted for it; folders are accepted where they bring no code."""
    overrides: Callable[[Config], Overrides] = _as_saved
    """By its config.json. A postprocessor may have none of these steps."""
    keyframes: Callable[[Config], int] = _none
    """Observations that it reads, so many executed actions apart, where it keeps a state of every
    task; else 0."""
    objection: Callable[[Config, Steps], str] = _no_objection
    """Why this one cannot be served as it was saved, from its configuration and preprocessor; empty
    where it can."""


FAMILIES: dict[str, Family] = {
    "act": Family("act"),
    "diffusion": Family("diffusion"),
    "eo1": Family(
        "eo1",
        steps=frozenset({"eo1_conversation_template_processor", "eo1_qwen_processor"}),
        tokenizer=("eo1_qwen_processor", "processor_name"),
        objection=_eo1_objection,
    ),
    "groot": Family(
        "groot",
        parts=(Part("config.json", "base_model_path"),),
        steps=frozenset(
            {
                "groot_action_unpack_unnormalize_v2",
                "groot_n1_7_action_decode_v1",
                "groot_n1_7_pack_inputs_v1",
                "groot_n1_7_vlm_encode_v1",
            }
        ),
        tokenizer=("groot_n1_7_vlm_encode_v1", "model_name"),
        publisher="nvidia",
        objection=_groot_objection,
    ),
    "evo1": Family(
        "evo1",
        parts=(Part("config.json", "vlm_model_name"),),
        steps=frozenset(
            {"evo1_action_processor", "evo1_pad_action_processor", "evo1_pad_state_processor"}
        ),
    ),
    "fastwam": Family(
        "fastwam",
        parts=(
            Part("tokenizer_config.json", "tokenizer_model_id"),
            Part("text_encoder/config.json", "text_encoder_model_id"),
            Part("vae/config.json", repository="Wan-AI/Wan2.2-TI2V-5B-Diffusers"),
        ),
        steps=frozenset({"fastwam_action_toggle_processor"}),
    ),
    "flow_mlp": Family("euler"),
    "lingbot_va": Family(
        "lingbot_va",
        parts=tuple(
            Part(f"{part}.json", "wan_pretrained_path")
            for part in ("vae/config", "text_encoder/config", "tokenizer/tokenizer_config")
        ),
        keyframes=_lingbot_keyframes,
        objection=_lingbot_objection,
    ),
    "molmoact2": Family(
        "molmoact2",
        parts=(
            Part("config.json", "checkpoint_path"),
            Part("tokenizer.json", "discrete_action_tokenizer", needed=_molmoact2_writes),
        ),
        steps=frozenset(
            {
                "molmoact2_action_frame_transform",
                "molmoact2_clamp_action",
                "molmoact2_clamp_normalized",
                "molmoact2_masked_normalizer",
                "molmoact2_masked_unnormalizer",
                "molmoact2_pack_inputs",
                "molmoact2_state_frame_transform",
            }
        ),
        tokenizer=("molmoact2_pack_inputs", "checkpoint_path"),
    ),
    "multi_task_dit": Family(
        "multi_task_dit",
        parts=(
            Part("config.json", "vision_encoder_name"),
            Part("config.json", "text_encoder_name"),
        ),
    ),
    "pi0": Family("euler", _keeps_pixels, steps=frozenset({"pi0_new_line_processor"})),
    "pi05": Family(
        "euler", _keeps_pixels, steps=frozenset({"pi05_prepare_state_tokenizer_processor_step"})
    ),
    "pi0_fast": Family(
        "pi0_fast",
        parts=(
            Part("tokenizer_config.json", "text_tokenizer_name"),
            Part("processor_config.json", "action_tokenizer_name"),
        ),
        steps=frozenset(
            {"action_tokenizer_processor", "pi0_fast_prepare_state_tokenizer_processor_step"}
        ),
        publisher="google",
        overrides=_pi0_fast_overrides,
        objection=_pi0_fast_objection,
    ),
    "smolvla": Family(
        "euler",
        _smolvla_resizes,
        parts=(Part("config.json", "vlm_model_name"),),
        steps=frozenset({"smolvla_new_line_processor"}),
    ),
    "vla_jepa": Family(
        "vla_jepa",
        parts=(
            Part("config.json", "qwen_model_name"),
            Part("config.json", "jepa_encoder_name", needed=_vla_jepa_world),
        ),
        steps=frozenset(
            {"vla_jepa_binarize_gripper", "vla_jepa_clip_actions", "vla_jepa_pre_snap_gripper"}
        ),
    ),
    "vqbet": Family("vqbet"),
    "wall_x": Family(
        "wall_x",
        parts=(Part("config.json", "pretrained_name_or_path"),),
        packages=("peft", "qwen_vl_utils", "torchdiffeq"),
        extra="wallx",
        steps=frozenset({"wall_x_task_processor"}),
    ),
    "xvla": Family(
        "xvla",
        _xvla_resizes,
        steps=frozenset(
            {
                "xvla_add_domain_id",
                "xvla_image_scale",
                "xvla_image_to_float",
                "xvla_imagenet_normalize",
            }
        ),
        objection=_xvla_objection,
    ),
}
"""By `config.type`. What an installed plugin registers is served besides them."""

GUIDED = frozenset(kind for kind, family in FAMILIES.items() if family.module == "euler")
"""Types that real-time chunking can guide (`families.guidance`)."""

REFUSED: dict[str, str] = {
    "gaussian_actor": "it gives one action and no chunk; act does",
    "tdmpc": "it goes on from its last plan: each robot would need its own copy; use act",
    "kairos": "it is a client of a serving node; serve what that node serves",
}
"""Types that are not served: why, and what to use instead."""


LEAVE_OUT = "leave it out, or for this one of several policies in its own options"
"""Follows the reason why an option cannot be used."""


def not_guided(kind: str) -> str:
    """Why a policy of this type cannot be served with `rtc`; empty where it can."""
    if kind in GUIDED:
        return ""
    able = ", ".join(sorted(GUIDED))
    return f"rtc: policies of type {kind!r} cannot be guided, those of {able} can"


SPEAKING = frozenset({"pi0", "pi05"})
"""Types that answer questions in words from the prefill of a chunk (`language/`)."""


def not_speaking(kind: str) -> str:
    """Why a policy of this type answers no questions; empty where it does."""
    if kind in SPEAKING:
        return ""
    able = ", ".join(sorted(SPEAKING))
    return f"language_mib: policies of type {kind!r} answer no questions, those of {able} do"


def tokenizer_of(kind: str) -> tuple[str, str]:
    """`Family.tokenizer` of a policy type, also of a plugin's."""
    return FAMILIES[kind].tokenizer if kind in FAMILIES else TOKENIZER
