"""MolmoAct2 on a small checkpoint of its own, from which LeRobot's implementation starts."""

from pathlib import Path
from typing import Any

from lerobot.policies.molmoact2.molmoact2_hf_model.configuration_molmoact2 import (
    MolmoAct2ActionExpertConfig,
    MolmoAct2AdapterConfig,
    MolmoAct2Config,
    MolmoAct2TextConfig,
    MolmoAct2VitConfig,
)
from lerobot.policies.molmoact2.molmoact2_hf_model.image_processing_molmoact2 import (
    MolmoAct2ImageProcessor,
)
from lerobot.policies.molmoact2.molmoact2_hf_model.modeling_molmoact2 import (
    MolmoAct2ForConditionalGeneration,
)
from lerobot.policies.molmoact2.molmoact2_hf_model.processing_molmoact2 import (
    IMAGE_PROMPT,
    IMAGE_TOKENS,
    MolmoAct2Processor,
)
from lerobot.policies.molmoact2.molmoact2_hf_model.video_processing_molmoact2 import (
    MolmoAct2VideoProcessor,
)
from transformers import Qwen2Tokenizer

from tiny_families.base import CAMERA, CHUNK, STEPS, WRIST, Tiny, byte_tokenizer

WIDTH, PADDED = 32, 32
ADDED = [
    *IMAGE_TOKENS,
    IMAGE_PROMPT,
    *(
        f"<{name}_{side}>"
        for name in ("action", "state", "setup", "control")
        for side in ("start", "end")
    ),
    "<action_output>",
    *(f"<state_{number}>" for number in range(256)),
]


def config(folder: Path) -> dict[str, Any]:
    byte_tokenizer().save_pretrained(folder / "fast")
    return {
        "checkpoint_path": str(save_checkpoint(folder / "molmoact2")),
        "discrete_action_tokenizer": str(folder / "fast"),
        "action_mode": "both",
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_inference_steps": STEPS,
        "model_dtype": "float32",
    }


def save_checkpoint(folder: Path) -> Path:
    """A folder with a small MolmoAct2 as Ai2 publishes them. It brings code, which nobody runs."""
    alphabet = byte_tokenizer().get_vocab()
    tokenizer = Qwen2Tokenizer(
        vocab=alphabet,
        merges=[],
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
    )
    tokenizer.add_tokens(ADDED, special_tokens=True)
    of = tokenizer.convert_tokens_to_ids
    attention = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    model = MolmoAct2ForConditionalGeneration(
        MolmoAct2Config(
            vit_config=MolmoAct2VitConfig(
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=2,
                image_default_input_size=(56, 56),
                image_num_pos=16,
                **attention,
            ),
            adapter_config=MolmoAct2AdapterConfig(
                vit_layers=(-1,),
                hidden_size=WIDTH,
                intermediate_size=64,
                text_hidden_size=WIDTH,
                **attention,
            ),
            text_config=MolmoAct2TextConfig(
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=2,
                vocab_size=len(tokenizer),
                additional_vocab_size=8,
                **attention,
            ),
            action_expert_config=MolmoAct2ActionExpertConfig(
                hidden_size=WIDTH,
                num_layers=2,
                num_heads=2,
                ffn_multiple_of=16,
                timestep_embed_dim=16,
            ),
            action_mode="both",
            action_start_token_id=of("<action_start>"),
            action_end_token_id=of("<action_end>"),
            image_start_token_id=of("<im_start>"),
            low_res_image_start_token_id=of("<low_res_im_start>"),
            image_end_token_id=of("<im_end>"),
            image_low_res_id=of("<im_low>"),
            image_patch_id=of("<im_patch>"),
            image_col_id=of("<im_col>"),
            frame_start_token_id=of("<frame_start>"),
            frame_end_token_id=of("<frame_end>"),
            eos_token_id=of("<eos>"),
        )
    )
    model.save_pretrained(folder)
    MolmoAct2Processor(
        image_processor=MolmoAct2ImageProcessor(
            size={"height": 56, "width": 56}, crop_mode="resize"
        ),
        video_processor=MolmoAct2VideoProcessor(),
        tokenizer=tokenizer,
    ).save_pretrained(folder)
    for file in folder.glob("*.py"):
        file.write_text("raise SystemExit('a policy folder has run its code')")
    return folder


TINY = {
    "molmoact2": Tiny(
        "molmoact2",
        config,
        cameras=(CAMERA, WRIST),
        unit=4.0,
        noise_shape=(CHUNK, PADDED),
        seeded=True,
    )
}
