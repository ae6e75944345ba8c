"""Build small masked language models for the tests."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

import modular_fairseq  # noqa: F401
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.roberta import ModularRoberta
from tests.fairseq_commands import run_preprocess, run_train, write_reversal_corpus
from tests.helpers import dictionary

SMALL = {
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
}
BOS, PAD, EOS, UNK = range(4)
# The words of trainings of small models.
SIZE = (
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-attention-heads 4 --encoder-layers 2 "
    "--optimizer adam --lr 5e-3 --max-tokens 96"
)
MASKED = f"--task masked_lm {SIZE} --tokens-per-sample 16 --max-epoch 2"
FINETUNE = (
    f"--task sentence_prediction --criterion sentence_prediction --num-classes 2 --max-positions 16 "
    f"--init-token 0 {SIZE} --max-epoch 2"
)


def task(types=40, positions=16):
    """Return the parts of a task that a model reads: a dictionary of `types` words and <mask>."""
    words = dictionary(types)
    words.add_symbol("<mask>")
    return SimpleNamespace(source_dictionary=words, target_dictionary=words, max_positions=lambda: positions)


def build(arch="modular_roberta", seed=1, types=40, positions=16, **changes):
    """Build a small masked language model of an arch."""
    torch.manual_seed(seed)
    args = Namespace(**{**SMALL, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    return ModularRoberta.build_model(FAMILIES["modular_roberta"](**vars(args)), task(types, positions))


def build_preset(arch, types, **changes):
    """Build an arch in its full size for a dictionary of `types` types, on the meta device."""
    args = Namespace(**changes)
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta"):  # 4 special symbols and <mask>
        return ModularRoberta.build_model(FAMILIES["modular_roberta"](**vars(args)), task(types - 5, 512))


def build_stock(seed=1, types=40, positions=16, **changes):
    """Build fairseq's own RoBERTa."""
    torch.manual_seed(seed)
    args = Namespace(**{**SMALL, "max_positions": positions, **changes})
    return RobertaModel.build_model(args, task(types, positions))


def binarize(folder, out, ending, *words):
    """Binarize {train,valid,test}.ENDING of a folder into its folder `out`, with further options `words`."""
    prefixes = [
        word
        for split in ("train", "valid", "test")
        for word in (f"--{split}pref", f"{folder}/{split}.{ending}")
    ]
    run_preprocess("--only-source", "--destdir", folder / out, *prefixes, *words)


def write_corpora(folder):
    """Write binarized data into a folder, and return it.

    The folder bin has sentences for pre-training. The folder classes classifies them by whether their first
    word is w0 to w5. The folder values has the number of this word as a value.
    """
    write_reversal_corpus(folder, train_pairs=80)
    binarize(folder, "bin", "en")
    for split in ("train", "valid", "test"):
        first = [int(line.split()[0][1:]) for line in (folder / f"{split}.en").read_text().splitlines()]
        labels = ["low" if number < 6 else "high" for number in first]
        (folder / f"{split}.label").write_text("\n".join(labels) + "\n")
        (folder / "values/label").mkdir(parents=True, exist_ok=True)
        (folder / f"values/label/{split}.label").write_text("".join(f"{number}\n" for number in first))
    for kind in ("classes", "values"):
        binarize(folder, f"{kind}/input0", "en", "--srcdict", str(folder / "bin/dict.txt"))
    binarize(folder, "classes/label", "label")
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Return the folder of the data that `write_corpora` writes; tests do not change it."""
    return write_corpora(tmp_path_factory.mktemp("masked"))


def trained(data, folder, words):
    """Train a model, and return the path of its last checkpoint."""
    run_train(data, *words.split(), "--save-dir", folder, common=())
    return folder / "checkpoint_last.pt"
