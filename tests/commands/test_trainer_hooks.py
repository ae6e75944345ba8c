"""Test that hooks of the Trainer are called in the order that `training/hooks.py` names."""

from modular_fairseq.training import hooks
from modular_fairseq.training.hooks import TrainerHook, hooks_of, made_hooks_of
from tests.fairseq_commands import run_train


class Recorder(TrainerHook):
    """A hook that writes down each call, and what it is about."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def write(self, *words):
        self.calls.append((self.name, *words))

    def begin_epoch(self, epoch):
        self.write("epoch", epoch)

    def train_step(self, step, samples, raise_oom):
        self.write("update", len(samples))
        logged = step(samples, raise_oom)
        self.write("end of update", "loss" in logged)
        return logged

    def begin_validation(self):
        self.write("validation")

    def valid_step(self, step, sample, raise_oom):
        self.write("valid batch")
        logged = step(sample, raise_oom)
        self.write("end of valid batch")
        return logged

    def zero_grad(self):
        self.write("zero")

    def begin_batch(self, sample, is_dummy):
        self.write("batch", is_dummy)

    def update_succeeded(self):
        self.write("success")


def test_hooks_are_called_in_order(reversal_data, tmp_path, monkeypatch):
    calls, made = [], []

    def make(name):
        return lambda trainer: made.append((name, trainer)) or Recorder(name, calls)

    makers = [make("inner"), lambda trainer: None, make("outer")]
    monkeypatch.setattr(hooks, "_MAKERS", [*hooks._MAKERS, *makers])
    words = ["--arch", "mae_transformer", "--mae-gate-interval", 1, "--update-freq", 2, "--max-epoch", 1]
    run_train(reversal_data, *words, "--save-dir", tmp_path)
    (_, trainer), _ = made  # each is made once
    assert [type(hook).__name__ for hook in hooks_of(trainer)] == ["GateTrainer", "Recorder", "Recorder"]
    assert made_hooks_of(trainer) == hooks_of(trainer) and made_hooks_of(object()) == []
    inner = [call[1:] for call in calls if call[0] == "inner"]
    assert inner[0] == ("epoch", 1)
    batches = [("batch", False)] * 2
    assert inner[1 : inner.index(("end of update", True)) + 1] == [
        ("update", 2),
        *batches,  # of the G step
        ("zero",),
        *batches,
        ("success",),
        ("end of update", True),
    ]
    about_validation = [call[0] for call in inner if "valid" in call[0]]
    assert about_validation[:3] == ["validation", "valid batch", "end of valid batch"]
    assert about_validation.count("validation") == 1
    for event in ("epoch", "zero", "batch", "success", "validation"):  # all hooks are told, in their order
        told = [name for name, what, *_ in calls if what == event]
        assert told and told == ["inner", "outer"] * (len(told) // 2), event
    for begin in ("update", "valid batch"):  # the outer hook's step calls the inner hook
        around = [call[:2] for call in calls if call[1] in (begin, f"end of {begin}")]
        assert around[:4] == [
            ("outer", begin),
            ("inner", begin),
            ("inner", f"end of {begin}"),
            ("outer", f"end of {begin}"),
        ]
