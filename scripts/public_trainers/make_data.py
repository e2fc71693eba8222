"""Make small random data in the formats that public trainers read: `make_data.py NAME FOLDER`, in the folder of the program."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "to", "the", "river"]


# A metric of `evaluate`, whose own must be downloaded
_METRIC = """
import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        values = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=values)

    def _compute(self, predictions, references):
        return {"accuracy": sum(int(a == b) for a, b in zip(predictions, references)) / len(references)}
"""


def _text(words: int, seed: int = 0) -> str:
    random.seed(seed)
    return " ".join(random.choice(_WORDS) for _ in range(words))


def shakespeare_char(_: Path) -> None:
    """Write nanoGPT's data/shakespeare_char: uint16 tokens, and the characters."""
    import numpy

    folder, text = Path("data/shakespeare_char"), _text(20_000)
    letters = sorted(set(text))
    codes = {letter: code for code, letter in enumerate(letters)}
    tokens = numpy.array([codes[letter] for letter in text], dtype=numpy.uint16)
    tokens[:-10_000].tofile(folder / "train.bin")
    tokens[-10_000:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": codes}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def text_file(folder: Path) -> None:
    """Write a text of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.txt").write_text(_text(4000))


def text_here(_: Path) -> None:
    """Write a text beside the program, with the letters of the line that it samples from."""
    Path("input.txt").write_text(f"O God, O God!\n{_text(4000)}")


def images(folder: Path) -> None:
    """Write a folder of pictures, train/CLASS/N.png and val/CLASS/N.png, and the same without classes."""
    import numpy
    from PIL import Image

    numpy.random.seed(0)
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            target = folder / "images" / part / kind
            target.mkdir(parents=True, exist_ok=True)
            for number in range(16):
                Image.fromarray(numpy.random.randint(0, 255, (64, 64, 3), dtype=numpy.uint8)).save(
                    target / f"{number}.png"
                )


def cifar(folder: Path, name: str = "cifar") -> None:
    """Write CIFAR-10's batches for Python."""
    import numpy

    target = folder / name / "cifar-10-batches-py"
    target.mkdir(parents=True, exist_ok=True)
    for batch in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        values: dict[str, Any] = {
            "data": numpy.random.randint(0, 255, (64, 3072), dtype=numpy.uint8),
            "labels": numpy.random.randint(0, 10, 64).tolist(),
        }
        (target / batch).write_bytes(pickle.dumps(values))
    (target / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {number}" for number in range(10)]}))


def mnist_of_examples(_: Path) -> None:
    """Write MNIST where pytorch/examples looks for it."""
    mnist(Path(".."), "data")


def mnist_of_kubeflow(_: Path) -> None:
    """Write FashionMNIST where Kubeflow's notebook looks for it."""
    mnist(Path(), "data")


def mnist_of_lightning(_: Path) -> None:
    """Write MNIST where Lightning's examples look for it."""
    mnist(Path("../../.."), "Datasets")


def mnist(folder: Path, name: str = "mnist") -> None:
    """Write MNIST and FashionMNIST as idx files."""
    import numpy

    for kind in ("MNIST", "FashionMNIST"):
        target = folder / name / kind / "raw"
        target.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 512), ("t10k", 128)):
            pictures = numpy.random.randint(0, 255, (count, 28, 28), dtype=numpy.uint8).tobytes()
            labels = numpy.random.randint(0, 10, count, dtype=numpy.uint8).tobytes()
            (target / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pictures)
            (target / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
            for each in target.glob(f"{part}-*-ubyte"):
                each.with_name(f"{each.name}.gz").write_bytes(gzip.compress(each.read_bytes()))


def cifar_of_mmengine(_: Path) -> None:
    """Write CIFAR-10 where MMEngine's example looks for it."""
    cifar(Path("data"), "cifar10")
    cifar(Path(), "data")


def torchvision(_: Path) -> None:
    """Let torchvision of PyPI, a CUDA build, load beside a torch for CPUs, and let it read a CIFAR-10 that is not the real one."""
    import importlib.util

    found = importlib.util.find_spec("torchvision")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    mark = "# by composesim's gallery of public trainers"
    extension, dataset = package / "extension.py", package / "datasets" / "cifar.py"
    if mark not in extension.read_text():
        nms = "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        lines = (
            "",
            mark,
            "if not _has_ops():",
            '    _library = torch.library.Library("torchvision", "DEF")',
            f'    _library.define("{nms}")',
            f'    _library.define("q{nms}")',
        )
        extension.write_text(extension.read_text() + "\n".join(lines) + "\n")
    if mark not in dataset.read_text():
        lines = ("", mark, "CIFAR10._check_integrity = lambda self: True", "check_integrity = lambda *_: True")
        dataset.write_text(dataset.read_text() + "\n".join(lines) + "\n")


def nanochat(folder: Path) -> None:
    """Write shards of text, and train nanochat's tokenizer on them, with its own script."""
    import os
    import subprocess

    import pyarrow
    import pyarrow.parquet

    target = folder / "nanochat"
    for name in ("base_data_climbmix", "base_data"):
        (target / name).mkdir(parents=True, exist_ok=True)
        for shard in range(2):
            texts = pyarrow.table({"text": [_text(400, seed) for seed in range(64 * shard, 64 * shard + 64)]})
            pyarrow.parquet.write_table(texts, target / name / f"shard_{shard:05}.parquet", row_group_size=16)
    variables = {**os.environ, "NANOCHAT_BASE_DIR": str(target)}
    command = [sys.executable, "-m", "scripts.tok_train", "--vocab-size=300", "--max-chars=100000"]
    subprocess.run(command, env=variables, check=True)


def picotron(folder: Path) -> None:
    """Write a configuration of picotron for two ranks of tensor and two of data parallelism, and an empty flash_attn."""
    tiny_llama(folder)
    values = json.loads(Path("template/base_config.json").read_text())
    values["distributed"] |= {"tp_size": 2, "dp_size": 2}
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    values["model"] |= {
        "name": str(folder / "tiny-llama"),
        "use_flash_attention": False,
        "use_fused_adam": False,
        **sizes,
    }
    values["training"] |= {"total_train_steps": 2, "seq_length": 16, "micro_batch_size": 2, "num_samples": 64}
    values["dataset"]["name"] = str(folder / "texts")
    # The data is local, but train.py asks for a token.
    values["environment"] |= {"FLASH_ATTEN": "0", "HF_TOKEN": "none"}
    (folder / "picotron.json").write_text(json.dumps(values))
    weights = Path("hf_model_safetensors")
    weights.mkdir(exist_ok=True)
    shutil.copy(folder / "tiny-llama" / "model.safetensors", weights)
    stub = folder / "stubs" / "flash_attn"
    for name in ("", "layers", "ops", "ops/triton"):
        (stub / name).mkdir(parents=True, exist_ok=True)
        (stub / name / "__init__.py").write_text("")
    (stub / "flash_attn_interface.py").write_text("flash_attn_func = None\n")
    (stub / "layers" / "rotary.py").write_text("apply_rotary_emb = None\n")
    (stub / "ops" / "triton" / "layer_norm.py").write_text("layer_norm_fn = None\n")


def kubeflow_notebook(folder: Path) -> None:
    """Write the function that Kubeflow's notebook submits as a script that calls it."""
    cells = json.loads(Path("mnist.ipynb").read_text())["cells"]
    source = next("".join(cell["source"]) for cell in cells if "def train_fashion_mnist" in "".join(cell["source"]))
    (folder / "kubeflow_mnist.py").write_text(f"{source}\n\ntrain_fashion_mnist()\n")


def titan_texts(_: Path) -> None:
    """Write the texts that torchtitan's debug model reads, unless the repository has its own, which are large."""
    target = Path("tests/assets/c4_test/data.json")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(json.dumps({"text": _text(400, seed)}) + "\n" for seed in range(64)))


def tiny_llama(folder: Path) -> None:
    """Write a Llama of 2 layers with a tokenizer of words, and a data set of texts."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    target = folder / "tiny-llama"
    words = ["<s>", "</s>", "<unk>", "<pad>", *sorted({*_WORDS, *"abcdefghijklmnopqrstuvwxyz.,:!?\n"})]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(target)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=128, **sizes)
    LlamaForCausalLM(config).save_pretrained(target)
    shutil.rmtree(folder / "lambda", ignore_errors=True)  # a trainer resumes from what it finds
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"text": _text(40, seed)}) for seed in range(64)]
    (texts / "train.jsonl").write_text("\n".join(rows) + "\n")


def glue(_: Path) -> None:
    """Write a small BERT and MRPC where `from_pretrained` and `load_dataset` find them by their names in the hub."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*_WORDS})]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    target = Path("bert-base-cased")
    special = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(target)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForSequenceClassification(
        BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)
    ).save_pretrained(target)
    metric = Path("glue/glue.py")
    metric.parent.mkdir(exist_ok=True)
    metric.write_text(_METRIC)
    data = Path("nyu-mll/glue")
    data.mkdir(parents=True, exist_ok=True)
    parts = ("train", "validation", "test")
    for part in parts:
        rows = [
            {"sentence1": _text(8, seed), "sentence2": _text(8, seed + 1), "label": seed % 2, "idx": seed}
            for seed in range(64)
        ]
        (data / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(f"  - split: {part}\n    path: {part}.jsonl\n" for part in parts)
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
