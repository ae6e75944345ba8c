"""The task and the criterion: fairseq-train --task speech_enhancement --criterion log_magnitude_mse."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from fairseq import metrics
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, BaseFairseqModel
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING

from modular_fairseq_cli.errors import UsageError

from .data import SpeechData, find

RATIOS = (0.0, 40.0)  # dB, the paper's (4.2)


@dataclass
class TaskOptions(FairseqDataclass):
    """The options of the task."""

    data: str = field(
        default=MISSING,
        metadata={
            "help": "folder with a folder for each part of the data, such as train and valid (see data.py)"
        },
    )
    sample_rate: int = field(
        default=16000,
        metadata={
            "help": "samples a second, 8000 or 16000 for PESQ; other files are resampled (default: 16000)"
        },
    )
    snr_low: float = field(
        default=RATIOS[0],
        metadata={"help": "lowest signal-to-noise ratio of training mixtures in dB (default: 0)"},
    )
    snr_high: float = field(
        default=RATIOS[1],
        metadata={"help": "highest signal-to-noise ratio of training mixtures in dB (default: 40)"},
    )
    max_seconds: float = field(
        default=0.0,
        metadata={
            "help": "train on so many seconds of longer recordings, from a random place on; 0: on all of "
            "them (default: 0)"
        },
    )
    seed: int = II("common.seed")


@register_task("speech_enhancement", dataclass=TaskOptions)
class SpeechEnhancement(FairseqTask):
    """Remove noise from speech."""

    cfg: TaskOptions

    @classmethod
    def setup_task(cls, cfg: TaskOptions, **kwargs) -> "SpeechEnhancement":
        """Set up the task.

        Raises:
            UsageError: an option cannot work.
        """
        if cfg.sample_rate < 1000 or cfg.sample_rate % 125:  # 16 ms must have a whole number of samples
            raise UsageError(
                f"--sample-rate must be a multiple of 125 Hz and at least 1000, not {cfg.sample_rate}"
            )
        if not Path(cfg.data).is_dir() and cfg.data:
            raise UsageError(f"{cfg.data} is no folder; give one with the folders train and valid")
        if not cfg.snr_low <= cfg.snr_high:
            raise UsageError(f"--snr-low {cfg.snr_low} must not be above --snr-high {cfg.snr_high}")
        if cfg.max_seconds and not cfg.max_seconds >= 0.1:
            raise UsageError(f"--max-seconds must be 0 or at least 0.1, not {cfg.max_seconds}")
        return cls(cfg)

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Build the model.

        Raises:
            UsageError: `--arch` is no model of the example.
        """
        if ARCH_MODEL_NAME_REGISTRY.get(cfg._name, cfg._name) != "speech_enhancer":
            raise UsageError(
                f"--arch {cfg._name} does not read speech; give speech_enhancer_base, tim_speech_enhancer "
                "or tim_speech_enhancer_nocomp"
            )
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> FairseqCriterion:
        """Build the criterion.

        Raises:
            UsageError: the criterion is not for speech.
        """
        if cfg._name != "log_magnitude_mse":
            raise UsageError(f"--criterion {cfg._name} is not for speech; give log_magnitude_mse")
        return super().build_criterion(cfg, from_checkpoint)

    def load_dataset(self, split: str, **kwargs) -> None:
        """Load a part of the data.

        Raises:
            UsageError: its folder does not fit (see `data.find`), or an option would have no effect.
        """
        cfg, found = self.cfg, find(Path(self.cfg.data) / split, self.cfg.sample_rate)
        if split == "train":
            snr = (cfg.snr_low, cfg.snr_high)
            if snr != RATIOS and not found.noises:
                raise UsageError(
                    f"--snr-low and --snr-high have no effect, because {cfg.data}/train has pairs; leave "
                    "them out"
                )
            self.datasets[split] = SpeechData(found, cfg.sample_rate, snr, cfg.seed, True, cfg.max_seconds)
        else:  # whole recordings, which are mixed with the same noises for all models
            self.datasets[split] = SpeechData(found, cfg.sample_rate, RATIOS, 1, False)

    @property
    def source_dictionary(self) -> None:
        """None, as there are no tokens."""
        return None

    target_dictionary = source_dictionary


@register_criterion("log_magnitude_mse")
class LogMagnitudeMse(FairseqCriterion):
    """The mean squared error of log magnitudes, over frequencies and frames."""

    def forward(self, model, sample, reduce=True):
        """Return the summed loss, the number of frames, and the numbers to log."""
        estimate = model(**sample["net_input"]).float()
        error = (estimate - sample["target"]).square().mean(dim=-1)
        loss = error[sample["net_input"]["frames"]].sum()
        count = sample["ntokens"]
        log = {
            "loss": loss.detach(),
            "ntokens": count,
            "nsentences": sample["nsentences"],
            "sample_size": count,
        }
        return loss, count, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        """Log the mean over frames."""
        loss, count = (sum(each[name] for each in logging_outputs) for name in ("loss", "sample_size"))
        metrics.log_scalar("loss", torch.as_tensor(loss) / count, count, round=5)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True, so that fairseq adds the numbers of several workers."""
        return True
