"""The tasks whose work is timed: tasks without data, random batches, and fairseq's own models beside ours."""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import torch
from fairseq.data import Dictionary, data_utils, monolingual_dataset
from fairseq.data.language_pair_dataset import collate
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import DictConfig
from torch import Tensor

from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.language_model import ModularTransformerLanguageModel
from modular_fairseq.models.options import FAMILIES, nested_config
from modular_fairseq.models.roberta import ModularRoberta
from modular_fairseq.models.translation import ModularTransformer

Draw = Callable[[Dictionary], Tensor]  # returns a random sentence of a dictionary


class Kind(ABC):
    """A kind of task.

    Attributes:
        options: options of fairseq-train that every model has by default.
        sharing: a further one, which models without an adaptive input or softmax have.
        plain: the plain arch that is timed by default.
        model: the class of our models.
        stacks: for each stack of a model, the name of its tokens in a batch. A stack is a module of the
            model, by its dotted name.
        searches: whether beam search is timed, too.
    """

    options: ClassVar[str]
    sharing: ClassVar[str] = "--share-decoder-input-output-embed"
    plain: ClassVar[str]
    model: ClassVar[type[BaseFairseqModel]]
    stacks: ClassVar[dict[str, str]]
    searches: ClassVar[bool] = True

    @abstractmethod
    def make(self, source_types: int, target_types: int) -> FairseqTask:
        """Return a task without data. The sizes of its dictionaries include four special symbols."""

    @abstractmethod
    def batch(self, task: FairseqTask, draws: list[Draw]) -> dict[str, Any]:
        """Return a batch as fairseq makes it, with a row for each function that draws sentences."""

    @abstractmethod
    def stock(self, cfg: DictConfig, task: FairseqTask) -> BaseFairseqModel:
        """Build fairseq's own Transformer with the options of a model."""

    def stock_criterion(self, cfg: DictConfig) -> str:
        """Return the name of the criterion of fairseq that stands in for ours."""
        adaptive = getattr(cfg.model, "adaptive_softmax_cutoff", None) is not None
        return "adaptive_loss" if adaptive else "label_smoothed_cross_entropy"

    @abstractmethod
    def longest(self, cfg: DictConfig) -> int:
        """Return the largest number of tokens of a sentence that a model can take."""


class Translation(Kind):
    """Translation by encoder-decoder models."""

    options = "--criterion modular_cross_entropy --label-smoothing 0.1"
    plain = "modular_transformer_iwslt_de_en"
    model = ModularTransformer
    stacks = {"encoder": "src_tokens", "decoder": "prev_output_tokens"}

    def make(self, source_types: int, target_types: int) -> TranslationTask:
        return TranslationTask(TranslationConfig(), dictionary(source_types), dictionary(target_types))

    def batch(self, task: FairseqTask, draws: list[Draw]) -> dict[str, Any]:
        pairs = [
            {"id": i, "source": draw(task.source_dictionary), "target": draw(task.target_dictionary)}
            for i, draw in enumerate(draws)
        ]
        return collate(pairs, task.source_dictionary.pad(), task.source_dictionary.eos())

    def stock(self, cfg: DictConfig, task: FairseqTask) -> TransformerModelBase:
        return TransformerModelBase.build_model(nested_config(cfg.model), task)

    def longest(self, cfg: DictConfig) -> int:
        return min(cfg.model.max_source_positions, cfg.model.max_target_positions)


class LanguageModeling(Kind):
    """Language modelling by decoder-only models. The task has one dictionary, of `target_types` types."""

    options = "--task language_modeling --criterion modular_cross_entropy"
    plain = "modular_transformer_lm"
    model = ModularTransformerLanguageModel
    stacks = {"decoder": "src_tokens"}

    def make(self, source_types: int, target_types: int) -> LanguageModelingTask:
        words = dictionary(target_types)
        return LanguageModelingTask(LanguageModelingConfig(), words, words, targets=["future"])

    def batch(self, task: FairseqTask, draws: list[Draw]) -> dict[str, Any]:
        words = task.target_dictionary
        rows = []
        for i, draw in enumerate(draws):
            target = draw(words)
            source = torch.cat([torch.tensor([words.eos()]), target[:-1]])
            rows.append({"id": i, "source": source, "target": target})
        return monolingual_dataset.collate(rows, words.pad(), words.eos())

    def stock(self, cfg: DictConfig, task: FairseqTask) -> TransformerLanguageModel:
        # fairseq's class needs options that its own command line adds, beside those that both have.
        own = {f.name: f.default for f in fields(TransformerLanguageModelConfig)}
        ours = vars(resolved(cfg.model, FAMILIES["modular_transformer_lm"]))
        return TransformerLanguageModel.build_model(Namespace(**{**own, **ours}), task)

    def longest(self, cfg: DictConfig) -> int:
        return cfg.model.max_target_positions or cfg.model.tokens_per_sample


class MaskedLanguageModeling(Kind):
    """Masked language modelling by encoders. The task has one dictionary, of `target_types` types."""

    options = "--task masked_lm --criterion modular_masked_lm"
    sharing = ""
    plain = "modular_roberta"
    model = ModularRoberta
    stacks = {"encoder.sentence_encoder": "src_tokens"}
    searches = False

    def make(self, source_types: int, target_types: int) -> MaskedLMTask:
        return MaskedLMTask(MaskedLMConfig(tokens_per_sample=POSITIONS), dictionary(target_types - 1))

    def batch(self, task: FairseqTask, draws: list[Draw]) -> dict[str, Any]:
        """Return a batch in which 15 % of the words are masked, and at least one is."""
        words = task.source_dictionary
        sentences = [torch.cat([torch.tensor([words.bos()]), draw(words)[:-1]]) for draw in draws]
        text = data_utils.collate_tokens(sentences, words.pad())
        generator = torch.Generator().manual_seed(int(text.sum()))  # other words have other masks
        masked = torch.rand(text.shape, generator=generator).lt(0.15) & text.ne(words.pad())
        masked[0, -1] = True
        return {
            "id": torch.arange(len(draws)),
            "net_input": {
                "src_tokens": text.masked_fill(masked, task.mask_idx),
                "src_lengths": text.ne(words.pad()).sum(1),
            },
            "target": text.masked_fill(~masked, words.pad()),
            "nsentences": len(draws),
            "ntokens": int(text.ne(words.pad()).sum()),
        }

    def stock(self, cfg: DictConfig, task: FairseqTask) -> RobertaModel:
        options = vars(resolved(cfg.model, FAMILIES["modular_roberta"]))
        return RobertaModel.build_model(Namespace(**{**options, "max_positions": self.longest(cfg)}), task)

    def stock_criterion(self, cfg: DictConfig) -> str:
        return "masked_lm"

    def longest(self, cfg: DictConfig) -> int:
        return cfg.model.max_positions or POSITIONS


POSITIONS = 512  # of a masked language model
KINDS: dict[str, Kind] = {
    "translation": Translation(),
    "language_modeling": LanguageModeling(),
    "masked_lm": MaskedLanguageModeling(),
}


def kind_of(task: FairseqTask) -> Kind:
    """Return the kind of a task."""
    if isinstance(task, MaskedLMTask):
        return KINDS["masked_lm"]
    return KINDS["language_modeling" if isinstance(task, LanguageModelingTask) else "translation"]


def dictionary(types: int) -> Dictionary:
    """Return a dictionary of `types` types, of which four are special symbols."""
    words = Dictionary()
    for i in range(types - len(words)):
        words.add_symbol(f"w{i}")
    return words
