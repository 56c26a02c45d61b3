"""A vision-language model of transformers in this process: a real, tiny, untrained Qwen2.5-VL."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from judge_questions import safety_question, task_state_question

from kairos_ros.core.errors import ConfigError
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.judge import FailureCode
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEXTS = [
    "is the workcell safe? ongoing, done, or failed? push the puck to the target",
    "The robot's task: Answer with one of: safe, unsafe, ongoing, done, failed.",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Configuration, tokenizer, image processor and random weights, saved as a hub folder is."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import (
        AutoTokenizer,
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    folder = tmp_path_factory.mktemp("tiny_qwen")
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(TEXTS * 20, vocab_size=400, special_tokens=SPECIAL)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    numbers = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        image_token_id=numbers["<|image_pad|>"],
        video_token_id=numbers["<|video_pad|>"],
        vision_start_token_id=numbers["<|vision_start|>"],
        vision_end_token_id=numbers["<|vision_end|>"],
    )
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=112 * 112),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def judge(folder):
    judge = load_judge(f"transformers:{folder}")
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 255, (112, 112, 3)).astype(np.uint8) for _ in range(3)]


def test_it_is_a_judge(judge, images):
    questions = [safety_question("push the puck", (image,)) for image in images]
    questions += [task_state_question("push the puck", tuple(images[:2]))]
    check_judge(judge, questions)


def test_it_looks_at_the_picture_and_reads_the_question(judge, images):
    def odds(*questions):
        return [v.probabilities["unsafe"] for v in judge.judge(questions)]

    one, other, worded = odds(
        safety_question("push", (images[0],)),
        safety_question("push", (images[1],)),
        safety_question("push", (images[0],), "is a hand in the cell?"),
    )
    assert one != other
    assert one != worded


def test_its_probabilities_are_those_of_the_answers_tokens(judge, images):
    """By hand: the softmax, over the allowed answers' tokens, of what follows the prompt."""
    question = task_state_question("push the puck", (images[0],))
    (verdict,) = judge.judge([question])
    inputs = judge._inputs(question)
    told = [judge._tokens(a) for a in question.answers]
    with torch.inference_mode():
        logits = judge._network(**inputs).logits[0, -1].double()
    wanted = torch.softmax(logits[[tokens[0] for tokens in told]], 0)
    for answer, probability in zip(question.answers, wanted.tolist(), strict=True):
        assert verdict.probabilities[answer] == pytest.approx(probability, abs=1e-6)
    assert verdict.cost.prompt_tokens == inputs["input_ids"].shape[1]


def test_answers_that_begin_alike_are_told_apart_by_what_follows(judge, images):
    from dataclasses import replace

    question = replace(safety_question("push", (images[0],)), answers=("done", "donedone"))
    assert judge._tokens("donedone")[: len(judge._tokens("done"))] == judge._tokens("done")
    (verdict,) = judge.judge([question])
    assert verdict.probabilities["done"] > verdict.probabilities["donedone"] > 0


def test_weights_that_overflow_are_a_failure_and_no_answer(folder, images):
    broken = load_judge(f"transformers:{folder}")
    with torch.no_grad():
        for parameter in broken._network.lm_head.parameters():
            parameter.fill_(float("nan"))
    (failure,) = broken.judge([safety_question("push", (images[0],))])
    assert failure.code == FailureCode.BAD_ANSWER
    assert "not finite" in failure.message


def test_a_folder_without_a_model_or_without_a_template_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="does not load"):
        load_judge(f"transformers:{tmp_path}")
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in folder.iterdir():
        if "template" not in path.name:
            (plain / path.name).write_bytes(path.read_bytes())
    settings = json.loads((plain / "processor_config.json").read_text())
    settings.pop("chat_template", None)
    (plain / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="chat template"):
        load_judge(f"transformers:{plain}")
