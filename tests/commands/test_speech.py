"""Test examples/speech_enhancement, a plugin for another kind of data on the layers of the package."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("soundfile")
pytest.importorskip("pesq")
pytest.importorskip("pystoi")
pytest.importorskip("torchmetrics")

import soundfile  # noqa: E402  (the lines above skip these tests without it)
from scipy.signal import resample_poly  # noqa: E402

from modular_fairseq.analysis.attention_maps import attention_maps  # noqa: E402
from modular_fairseq.models.options import PRESETS  # noqa: E402
from modular_fairseq.models.tim import TimOptions  # noqa: E402
from modular_fairseq.modules.independent_mechanisms import Competition  # noqa: E402
from modular_fairseq_cli import main as cli  # noqa: E402
from modular_fairseq_cli.errors import UsageError  # noqa: E402
from tests import plugins  # noqa: E402
from tests.fairseq_commands import run_train  # noqa: E402
from tests.places import ROOT  # noqa: E402
from tests.processes import PATIENCE, has_ended, line_of, wait_for  # noqa: E402
from tests.scripts import script  # noqa: E402

EXAMPLE = ROOT / "examples" / "speech_enhancement"
TRAIN = (
    f"--user-dir {EXAMPLE} --task speech_enhancement --sample-rate 8000 --criterion log_magnitude_mse "
    "--optimizer adam --lr 0.002 --batch-size 8 --encoder-layers 4 --encoder-embed-dim 32 "
    "--encoder-ffn-embed-dim 32 --max-update 4 --no-epoch-checkpoints"
)


def call(*words):
    """Run a command of the example, and return its status and what it has printed."""
    found = subprocess.run(
        [sys.executable, EXAMPLE / "__main__.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return found.returncode, found.stdout, found.stderr


@pytest.fixture(scope="module")
def speech():
    with plugins.imported(EXAMPLE) as module:
        yield module


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    assert call("toys", folder)[0] == 0
    return folder


@pytest.fixture(scope="module")
def data(toys, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "out"
    words = ["--test-speaker", "carl", "--test-noise", "hum", "--repeat", "1"]
    status, printed, _ = call("digits", toys / "digits", toys / "noises", "--out", out, *words)
    assert status == 0
    assert printed.splitlines() == [
        "train: 12 utterances",
        "valid: 12 utterances",
        "test: 16 utterances",
        "test-known: 8 utterances",
    ]
    return out


@pytest.fixture(scope="module")
def model(speech, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    words = [*TRAIN.split(), "--arch", "tim_speech_enhancer", "--tim-layers", "all", "--save-dir", folder]
    run_train(data, *words, common=())
    return folder / "checkpoint_last.pt"


def enhancer(speech, rate=8000, **changes):
    """Return a model with random weights."""
    options = speech.model.EnhancerOptions(encoder_embed_dim=32, encoder_ffn_embed_dim=32, **changes)
    task = speech.training.SpeechEnhancement.setup_task(
        speech.training.TaskOptions(data="", sample_rate=rate)
    )
    torch.manual_seed(1)
    return speech.model.SpeechEnhancer.build_model(options, task).eval()


def sound(folder, name, seconds=0.5, rate=8000, level=0.1, seed=1):
    """Write a file of random samples, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = level * np.random.default_rng(seed).normal(size=int(seconds * rate))
    soundfile.write(folder / name, samples, rate)
    return folder / name


@pytest.mark.parametrize(
    "changes", [{}, {"tim_layers": "middle"}, {"tim_layers": "all", "tim_mechanisms": 4}]
)
def test_no_output_changes_with_frames_more_than_two_ahead(speech, changes):
    model, noisy = enhancer(speech, **changes), torch.rand(1, 24, 129)
    there = torch.ones(1, 24, dtype=torch.bool)
    before = model(noisy, there)
    for frame in (0, 7, 23):
        changed = noisy.clone()
        changed[:, frame] += 1.0
        difference = (model(changed, there) - before).abs().amax(dim=(0, 2))
        assert difference[: max(frame - 2, 0)].max() == 0 if frame > 2 else True
        assert (difference[max(frame - 2, 0) :] > 0).all()


def test_masks_scale_the_noisy_log_magnitudes(speech):
    model, noisy = enhancer(speech, masking=True), torch.rand(2, 9, 129)
    frames = torch.ones(2, 9, dtype=torch.bool)
    assert torch.equal(model(noisy, frames), noisy)  # a new model changes nothing
    with torch.no_grad():
        model.output.bias.copy_(torch.tensor([-0.25, -2.0, 0.5]).repeat(43))
    scale = torch.tensor([0.75, 0.0, 1.5]).repeat(43)
    torch.testing.assert_close(model(noisy, frames), scale * noisy)
    plain = enhancer(speech)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(noisy, frames), model.output.bias.expand(2, 9, -1))


def test_padding_changes_nothing(speech):
    model, noisy = enhancer(speech, tim_layers="middle").double(), torch.rand(1, 20, 129).double()
    alone = model(noisy, torch.ones(1, 20, dtype=torch.bool))
    longer = torch.cat([noisy, torch.rand(1, 9, 129).double()], dim=1)
    frames = torch.arange(29).unsqueeze(0) < 20
    torch.testing.assert_close(model(longer, frames)[:, :20], alone, rtol=0, atol=1e-12)


def test_analyses_do_not_count_padding(speech):
    model, frames = enhancer(speech), torch.arange(12) < torch.tensor([[12], [7]])
    with attention_maps(model) as maps, torch.no_grad():
        model(torch.rand(2, 12, 129), frames)
    assert [int(each.valid_queries().sum()) for each in maps] == [19] * 8


def test_archs_have_about_as_many_parameters_as_the_paper_says(speech):
    """A.2: 6 million; and findings on its contradictory widths are in model.py."""
    for arch in ("speech_enhancer_base", "tim_speech_enhancer", "tim_speech_enhancer_nocomp"):
        options = speech.model.EnhancerOptions(**PRESETS[arch])
        task = speech.training.SpeechEnhancement.setup_task(speech.training.TaskOptions(data=""))
        model = speech.model.SpeechEnhancer.build_model(options, task)
        assert abs(sum(parameter.numel() for parameter in model.parameters()) / 6e6 - 1) < 0.03
        has = [layer.competition is not None for layer in model.encoder.layers]
        assert has == [arch == "tim_speech_enhancer" and 2 <= number < 7 for number in range(8)]


def test_the_options_are_those_of_tim(speech):
    own = {"tim_mechanisms": 2, "tim_layers": "none"}
    assert issubclass(speech.model.EnhancerOptions, TimOptions)
    with pytest.raises(UsageError, match="--tim-no-competition has no effect without --tim-layers"):
        enhancer(speech, tim_no_competition=True, **own)
    with pytest.raises(UsageError, match="--encoder-embed-dim 32 is not a multiple of --encoder-attention"):
        enhancer(speech, encoder_attention_heads=5)


@pytest.mark.parametrize(("rate", "window"), [(8000, 256), (16000, 512)])
def test_spectra_have_windows_of_32_ms_and_give_the_wave_back(speech, rate, window):
    frames, wave = speech.audio.Frames(rate), torch.randn(3001)
    spectrum = frames.spectrum(wave)
    assert frames.window == window and spectrum.shape == (frames.count(3001), window // 2 + 1)
    # frame t is the transform of the window around sample t * hop
    around = torch.nn.functional.pad(wave, (window // 2, window))[5 * window // 2 :][:window]
    torch.testing.assert_close(spectrum[5], torch.fft.rfft(around * torch.hann_window(window)) / (window / 4))
    same = speech.audio.with_magnitude(spectrum, speech.audio.log_magnitude(spectrum))
    torch.testing.assert_close(frames.wave(same, 3001), wave, rtol=0, atol=1e-4)
    sine = torch.sin(2 * torch.pi * 1000 * torch.arange(8000) / rate)
    assert float(frames.spectrum(sine)[10].abs().max()) == pytest.approx(1, abs=1e-4)
    short = torch.randn(10)
    torch.testing.assert_close(frames.wave(frames.spectrum(short), 10), short)


@pytest.mark.parametrize("beyond", [0, 1, 127, 126, 64])
def test_the_end_of_a_cleaned_wave_is_as_loud_as_the_rest(speech, beyond):
    """The estimate has other magnitudes than the noisy wave, so that windows do not fit together."""
    commands = importlib.import_module(f"{speech.__name__}.commands")
    frames, noisy = speech.audio.Frames(8000), 0.1 * torch.randn(30 * 128 + beyond)

    def model(magnitudes, there):
        assert magnitudes.shape[:2] == there.shape
        return magnitudes * (0.8 + 0.4 * torch.rand(magnitudes.shape))

    cleaned = commands.enhance(model, noisy, frames)
    assert cleaned.shape == noisy.shape and cleaned.abs().max() < 2 * noisy.abs().max()
    same = commands.enhance(lambda magnitudes, there: magnitudes, noisy, frames)
    torch.testing.assert_close(same, noisy, rtol=0, atol=1e-4)


@pytest.mark.parametrize("snr", [0.0, 12.5, 40.0])
def test_mixtures_have_the_ratio(speech, snr):
    clean, noise = 0.1 * torch.randn(8000).double(), torch.randn(8000).double()
    added = speech.audio.mix(clean, noise, snr) - clean
    found = 10 * torch.log10(clean.square().mean() / added.square().mean())
    assert float(found) == pytest.approx(snr, abs=1e-6)
    for silent in ((torch.zeros(10), torch.ones(10)), (torch.ones(10), torch.zeros(10))):
        assert torch.equal(speech.audio.mix(*silent, 5.0), silent[0])


def test_parts_of_a_noise_begin_anywhere(speech):
    noise, random = torch.arange(100.0), np.random.default_rng(1)
    begins = {int(speech.audio.part_of(noise, 40, random)[0]) for _ in range(500)}
    assert begins == set(range(61))
    assert speech.audio.part_of(noise[:30], 75, random).unique().tolist() == list(range(30))


def noise_of(speech, data, part, index):
    """Return the noise of a pair [samples]."""
    found = speech.data.SpeechData(speech.data.find(data / part, 8000), 8000, (0, 0), 1, False)
    noisy, clean = found.waves(index)
    return (noisy - clean).numpy()


def similarity(part, whole):
    """Return the highest cosine of a wave with any part of a longer one."""
    products = np.correlate(whole, part, mode="valid")
    squares = np.convolve(whole**2, np.ones(len(part)), mode="valid")
    return (products / np.sqrt(squares * (part**2).sum() + 1e-12)).max()


def test_each_part_has_its_own_share_of_each_noise(speech, toys, data):
    """The noise of each pair is found in the share of its part, and in no other one."""
    hiss = speech.audio.read(toys / "noises/hiss.wav", 8000).numpy()
    shares = {"train": hiss[:64000], "valid": hiss[64000:72000], "test-known": hiss[72000:]}
    kept = speech.audio.read(data / "train/noise/hiss.wav", 8000).numpy()
    assert np.abs(kept - shares["train"]).max() < 1e-4
    assert not (data / "train/noise/hum.wav").exists()
    for part in ("valid", "test-known"):
        found = []
        for index in range(2):  # noises take turns
            first = noise_of(speech, data, part, index)[:2000]
            found.append({name: similarity(first, share) for name, share in shares.items()})
        [of_hiss] = [each for each in found if max(each.values()) > 0.9]
        assert all((value > 0.9) == (name == part) for name, value in of_hiss.items())


def test_waves_are_computed_in_float64_so_that_processors_write_the_same_files(
    speech, toys, tmp_path, monkeypatch
):
    digits, waves = importlib.import_module(f"{speech.__name__}.digits"), []
    monkeypatch.setattr(digits, "write", lambda path, wave, rate: waves.append(wave))
    folders = {"digits": toys / "digits", "noises": toys / "noises", "out": tmp_path / "out"}
    with pytest.raises(UsageError, match="has no audio file"):  # as nothing is written here
        digits.run(Namespace(**folders, test_speaker="carl", test_noise="hum", repeat=1))
    assert len(waves) == 12 + 2 + 2 * (12 + 16 + 8) and {wave.dtype for wave in waves} == {torch.float64}


def test_a_silent_noise_is_told_once(speech, tmp_path, caplog):
    sound(tmp_path / "clean", "a.wav")
    sound(tmp_path / "clean", "b.wav")
    (tmp_path / "noise").mkdir()
    soundfile.write(tmp_path / "noise/none.wav", np.zeros(9000), 8000)
    dataset = speech.data.SpeechData(speech.data.find(tmp_path, 8000), 8000, (0, 0), 1, True)
    assert all(torch.equal(*dataset.waves(index)) for index in range(2))
    assert (
        caplog.text.count("noise/none.wav is silent, so speech that is mixed with it stays without noise")
        == 1
    )


def test_an_error_leaves_no_part_of_the_data(toys, tmp_path):
    shutil.copytree(toys / "noises", tmp_path / "noises")
    soundfile.write(tmp_path / "noises/short.wav", np.ones(3), 8000)
    words = ["--test-speaker", "carl", "--test-noise", "hum", "--out", tmp_path / "out"]
    status, _, said = call("digits", toys / "digits", tmp_path / "noises", *words)
    assert status == 1 and "a noise is too short to be divided" in said
    shutil.copytree(toys / "digits", tmp_path / "digits")
    for part, takes in (("train", "567"), ("valid", "234"), ("test-known", "01")):
        shutil.copytree(toys / "digits", tmp_path / "digits", dirs_exist_ok=True)
        for path in (tmp_path / "digits").glob(f"*_[{takes}].wav"):
            if path.name[0] != "7" or path.stem.startswith("carl_", 2):  # one digit of each of two speakers
                path.unlink()
        status, _, said = call("digits", tmp_path / "digits", toys / "noises", *words)
        assert (
            status == 1 and f"too few recordings for {part}, as an utterance needs 5 of one speaker" in said
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "noises"]


def test_speakers_and_noises_that_cannot_be_set_apart_are_told(toys, tmp_path):
    def said(*words, digits=toys / "digits", noises=toys / "noises"):
        status, _, sentence = call("digits", digits, noises, *words, "--out", tmp_path / "out")
        assert status == 1 and not (tmp_path / "out").exists()
        return sentence

    apart = ("--test-speaker", "carl", "--test-noise", "hum")
    assert "no recording is of the speaker eve; give --test-speaker one of anna, " in said(
        "--test-speaker", "eve", "--test-noise", "hum"
    )
    assert "no noise is called bark; give --test-noise one of " in said(
        "--test-speaker", "carl", "--test-noise", "bark"
    )
    (tmp_path / "one").mkdir()
    for path in (toys / "digits").glob("*_carl_*.wav"):
        shutil.copy(path, tmp_path / "one")
    assert "all recordings are of the speaker carl; add " in said(*apart, digits=tmp_path / "one")
    (tmp_path / "noises/a").mkdir(parents=True)
    shutil.copy(next((toys / "noises").glob("hum*")), tmp_path / "noises/hum_1.wav")
    assert "the names of all noises begin with hum; add " in said(*apart, noises=tmp_path / "noises")
    shutil.copy(tmp_path / "noises/hum_1.wav", tmp_path / "noises/a/hum_1.wav")
    assert "are called hum_1; rename one of them" in said(*apart, noises=tmp_path / "noises")


def test_a_recording_that_is_silent_or_has_another_name_is_told(speech, toys, tmp_path):
    digits = importlib.import_module(f"{speech.__name__}.digits")
    shutil.copytree(toys / "digits", tmp_path / "digits")
    args = Namespace(digits=tmp_path / "digits", noises=toys / "noises", out=tmp_path / "out", repeat=1)
    args.test_speaker, args.test_noise = "carl", "hum"
    path = sound(tmp_path / "digits", "7_anna_6.wav", level=0)
    with pytest.raises(UsageError, match=f"^{path} is silent; remove it$"):
        digits.run(args)
    path = path.rename(path.with_name("seven_anna_6.wav"))
    with pytest.raises(UsageError, match=f"^{path}: the name must be DIGIT_SPEAKER_TAKE.wav, as in "):
        digits.run(args)
    assert not (tmp_path / "out").exists()


def test_recordings_that_are_left_over_are_told(toys, tmp_path):
    shutil.copytree(toys / "digits", tmp_path / "digits")
    for name in ("7_anna_6", "8_anna_6", "3_bert_2"):
        (tmp_path / f"digits/{name}.wav").unlink()
    words = ["--test-speaker", "carl", "--test-noise", "hum", "--out", tmp_path / "out"]
    status, printed, _ = call("digits", tmp_path / "digits", toys / "noises", *words)
    over = "recordings are left over, as an utterance has 5"
    lines = [
        f"train: 44 utterances; in each of 4 rounds, 3 of 58 {over}",
        f"valid: 11 utterances; 4 of 59 {over}",
    ]
    assert status == 0 and printed.splitlines() == [*lines, "test: 16 utterances", "test-known: 8 utterances"]


def test_pairs_of_different_lengths_are_told(speech, tmp_path, caplog):
    for name, seconds in (("a.wav", 0.5), ("b.wav", 0.75)):
        sound(tmp_path / "clean", name, seconds=0.5)
        sound(tmp_path / "noisy", name, seconds=seconds)
    found = speech.data.find(tmp_path, 8000)
    assert "the two files of 1 of 2 pairs differ in length, by up to 0.250 s" in caplog.text
    dataset = speech.data.SpeechData(found, 8000, (0, 1), 1, False)
    assert [len(dataset.waves(index)[0]) for index in (0, 1)] == [4000, 4000]


def test_training_has_new_noises_in_every_epoch_and_other_parts_always_the_same(speech, data):
    found = speech.data.find(data / "train", 8000)
    for is_training in (True, False):
        dataset = speech.data.SpeechData(found, 8000, (0.0, 40.0), 1, is_training)
        noisy = []
        for epoch in (1, 2, 1):
            dataset.set_epoch(epoch)
            noisy.append(dataset.waves(3)[0])
            assert torch.equal(dataset.waves(3)[1], speech.audio.read(found.recordings[3].clean, 8000))
        assert torch.equal(noisy[0], noisy[2])
        assert torch.equal(noisy[0], noisy[1]) != is_training
        orders = []
        for epoch in (1, 2, 1):
            dataset.set_epoch(epoch)
            orders.append(dataset.ordered_indices().tolist())
        assert sorted(orders[0]) == list(range(12)) and orders[0] == orders[2]
        assert (orders[0] != orders[1]) == is_training


def test_a_process_that_reads_data_gives_new_noises_in_each_epoch(speech, data):
    """fairseq reads in another process by default, and keeps it if it may."""
    task = speech.training.SpeechEnhancement.setup_task(
        speech.training.TaskOptions(data=str(data), sample_rate=8000, seed=1)
    )
    task.load_dataset("train")
    found = {}
    for workers in (0, 1):
        sums = []
        for epoch in (1, 2, 3):
            batches = task.get_batch_iterator(
                task.dataset("train"), max_sentences=4, num_workers=workers, epoch=epoch
            )
            epoch_batches = batches.next_epoch_itr(shuffle=False)
            sums.append(sum(float(batch["net_input"]["noisy"].sum()) for batch in epoch_batches))
        found[workers] = sums
    assert found[0] == pytest.approx(found[1]) and len(set(found[0])) == 3


def test_batches_have_zeros_and_frames(speech, data):
    dataset = speech.data.SpeechData(speech.data.find(data / "valid", 8000), 8000, (0, 1), 1, False)
    batch = dataset.collater([dataset[0], dataset[1]])
    lengths = batch["net_input"]["frames"].sum(dim=1)
    assert (
        lengths.tolist() == [dataset.size(0), dataset.size(1)] == [len(dataset[i]["noisy"]) for i in (0, 1)]
    )
    assert batch["ntokens"] == int(lengths.sum())
    for values in (batch["net_input"]["noisy"], batch["target"]):
        assert values.shape == (2, int(lengths.max()), 129)
        assert not values[~batch["net_input"]["frames"]].any()


def test_longer_recordings_are_cut(speech, tmp_path):
    for kind in ("clean", "noisy"):
        sound(tmp_path / kind, "a.wav", seconds=2)
    found = speech.data.find(tmp_path, 8000)
    dataset = speech.data.SpeechData(found, 8000, (0, 1), 1, True, longest=0.5)
    begins = set()
    for epoch in range(4):
        dataset.set_epoch(epoch)
        noisy, clean = dataset.waves(0)
        assert torch.equal(noisy, clean) and len(clean) == 4000
        assert len(dataset[0]["noisy"]) == dataset.size(0)
        begins.add(float(clean[0]))
    assert len(begins) > 1


def test_the_criterion_counts_frames_and_not_padding(speech):
    class Zero(torch.nn.Module):
        def forward(self, noisy, frames):
            return torch.zeros_like(noisy)

    frames = torch.tensor([[True, True, True], [True, False, False]])
    target = torch.full((2, 3, 129), 2.0)
    sample = {
        "net_input": {"noisy": target, "frames": frames},
        "target": target,
        "ntokens": 4,
        "nsentences": 2,
    }
    loss, count, log = speech.training.LogMagnitudeMse(None)(Zero(), sample)
    assert (float(loss), count, float(log["loss"])) == (16.0, 4, 16.0)


@pytest.mark.parametrize("form", ["name", "fileid"])
def test_pairs_are_found_by_their_names(speech, tmp_path, form):
    names = {
        "name": (["b.wav", "a.flac"], ["a.flac", "b.wav"]),
        "fileid": (["clean_fileid_1.wav", "clean_fileid_12.wav"], ["x_snr5_fileid_12.wav", "y_fileid_1.wav"]),
    }[form]
    for kind, files in zip(("clean", "noisy"), names, strict=True):
        for name in files:
            sound(tmp_path / kind, name)
    found = [(each.clean.name, each.noisy.name) for each in speech.data.find(tmp_path, 8000).recordings]
    expected = {
        "name": [("a.flac", "a.flac"), ("b.wav", "b.wav")],
        "fileid": [
            ("clean_fileid_1.wav", "y_fileid_1.wav"),
            ("clean_fileid_12.wav", "x_snr5_fileid_12.wav"),
        ],
    }[form]
    assert found == expected


def test_samples_that_are_too_loud_are_cut_and_counted(speech, data, tmp_path, monkeypatch, capsys):
    commands = importlib.import_module(f"{speech.__name__}.commands")
    task = Namespace(cfg=Namespace(sample_rate=8000))
    monkeypatch.setattr(commands, "load", lambda path: (None, task))
    monkeypatch.setattr(commands, "enhance", lambda *args: torch.tensor([0.5, 1.5, -2.0, -1.0]))
    out = tmp_path / "loud.wav"
    commands.clean(Namespace(file=data / "test/clean/0000.wav", path=tmp_path, out=out))
    assert f"{out}: 2 of 4 samples are too loud and are cut at 1\n" in capsys.readouterr().err
    np.testing.assert_allclose(soundfile.read(out)[0], [0.5, 1, -1, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [("talk.wav", "this is the recording that is cleaned"), ("new.mp3", "give a file that")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_read(speech, tmp_path, out, sentence):
    commands = importlib.import_module(f"{speech.__name__}.commands")
    sound(tmp_path, "talk.wav")
    before = (tmp_path / "talk.wav").read_bytes()
    with pytest.raises(UsageError, match=sentence):
        commands.clean(Namespace(file=tmp_path / "talk.wav", path=tmp_path / "none.pt", out=tmp_path / out))
    assert (tmp_path / "talk.wav").read_bytes() == before


@pytest.mark.parametrize("package", ["soundfile", "pesq", "pystoi"])
def test_a_package_that_is_not_installed_is_named(speech, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    needs = (
        speech.audio.soundfile
        if package == "soundfile"
        else partial(
            importlib.import_module(f"{speech.__name__}.scores").score, torch.ones(9), torch.ones(9), 8000
        )
    )
    says = f"need the package {package}; install it by: pip install 'modular_fairseq\\[speech\\]'"
    with pytest.raises(UsageError, match=says):
        needs()


def test_a_trained_model_cleans_and_is_scored_and_looked_into(model, data, toys, tmp_path):
    noise = next((toys / "noises").iterdir())
    status, printed, said = call("clean", noise, "--path", model, "--out", tmp_path / "clean.flac")
    assert status == 0 and "is resampled from 16,000 to 8,000 Hz" in said
    assert printed == f"{tmp_path / 'clean.flac'}: 10.0 s at 8,000 Hz\n"
    assert soundfile.info(tmp_path / "clean.flac").frames == 80_000
    words = ["evaluate", data, "--path", model, "--gen-subset", "test-known", "--out", tmp_path / "s.json"]
    status, printed, _ = call(*words)
    assert status == 0 and "8 recordings" in printed
    scores = json.loads((tmp_path / "s.json").read_text())
    assert len(scores["recordings"]) == 8
    assert all("unscored" not in row for row in scores["recordings"])
    for name, low, high in (("pesq", 1, 4.6), ("stoi", 0, 1)):
        for which in ("noisy", "model"):
            values = [row[f"{which} {name}"] for row in scores["recordings"]]
            assert low <= min(values) and max(values) <= high
            assert scores["means"][f"{which} {name}"] == pytest.approx(sum(values) / 8)
    cli.main(
        ["analyze", "speech", str(data), "--path", str(model), "--user-dir", str(EXAMPLE)]
        + ["--gen-subset", "test", "--out", str(tmp_path / "analysis")]
    )
    found = json.loads((tmp_path / "analysis/analysis.json").read_text())["analyses"]["speech"]
    assert [row["layer"] for row in found["table"]] == [f"layer {i + 1}" for i in range(4)]
    for row in found["table"]:
        assert (
            row["correlation c1"] == pytest.approx(-row["correlation c2"], abs=1e-4)
            and 0 <= row["5 %"] <= row["entropy"] <= row["95 %"] < 1.0001
        )
    assert all(row[row["layer"]] == pytest.approx(1) for row in found["layers"])
    timeline = found["timelines"][0]
    assert list(timeline["rows"]) == ["speech", *(f"c1, layer {i + 1}" for i in range(4))]
    labels = [image["label"].split(",")[0] for image in timeline["images"]]
    assert labels == ["noisy", "output", "clean"]
    assert {image["width"] for image in timeline["images"]} == {len(timeline["rows"]["speech"])}
    cli.main(["report", str(tmp_path / "analysis"), "--out", str(tmp_path / "report.html")])
    assert '"timelines":[{"title":"0' in (tmp_path / "report.html").read_text()


def test_the_analysis_of_words_refuses_speech(model, data, tmp_path):
    words = ["analyze", "competition", str(data), "--path", str(model), "--user-dir", str(EXAMPLE)]
    with pytest.raises(SystemExit) as error:
        cli.main([*words, "--out", str(tmp_path / "out")])
    assert "the data has no words; use an analysis of the plugin" in str(error.value)


class Competing(torch.nn.Module):
    """A model of two layers, of which the second has a competition that is the first bin of its input."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Module()
        self.encoder.layers = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
        self.encoder.layers[1].competition = Competition(2, 4)
        self.encoder.layers[1].competition.forward = lambda x: torch.stack([x, 1 - x], dim=-1)

    def forward(self, noisy, frames):
        self.encoder.layers[1].competition(noisy[..., 0].T)
        return noisy


def area(x, positive):
    """Return the share of pairs of a positive and a negative in which the former is higher."""
    pairs = x[positive][:, None] - x[~positive]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_the_analysis_has_the_correlation_of_each_mechanism_with_speech(speech, data):
    model = Competing()
    analysis = speech.analysis.SpeechOfMechanisms(model)
    task = speech.training.SpeechEnhancement.setup_task(
        speech.training.TaskOptions(data=str(data), sample_rate=8000)
    )
    task.load_dataset("valid")
    analysis.of_task(task)
    random = torch.Generator().manual_seed(1)
    there = torch.arange(30) < torch.tensor([[30], [20]])
    loud = torch.rand(2, 30, generator=random) > 0.4
    c = torch.where(loud, 0.5, 0.3) + 0.3 * torch.rand(2, 30, generator=random)
    c += torch.tensor([[0.0], [0.15]])  # in the second recording all are higher
    noisy = torch.rand(2, 30, 129, generator=random) + 1
    noisy[..., 0] = c
    target = loud[..., None].float().expand(2, 30, 129)
    batch = {"id": torch.tensor([0, 1]), "net_input": {"noisy": noisy, "frames": there}, "target": target}
    with analysis.watching():
        model(**batch["net_input"])
        analysis.see(batch, [])
    found = analysis.report()
    [row] = found.table
    each = [(c[i][there[i]].double().numpy(), loud[i][there[i]].numpy()) for i in range(2)]
    areas = np.mean([area(*pair) for pair in each])
    c, loud = c[there].double().numpy(), loud[there].numpy()
    assert row["layer"] == "layer 2" and found.frames == 50 and found.share == pytest.approx(loud.mean())
    expected = np.corrcoef(c, loud)[0, 1]
    assert expected > 0.4 and row["correlation c1"] == pytest.approx(expected, rel=1e-6)
    assert row["correlation c2"] == pytest.approx(-expected, rel=1e-6)
    assert row["AUC c1"] == pytest.approx(areas) and row["AUC c2"] == pytest.approx(1 - areas)
    assert abs(areas - area(c, loud)) > 1e-4
    entropy = -(c * np.log(c) + (1 - c) * np.log(1 - c)) / np.log(2)
    for name, value in (("entropy", entropy.mean()), ("5 %", np.quantile(entropy, 0.05))):
        assert row[name] == pytest.approx(value, rel=1e-5)
    energies = [(np.expm1(each.double().numpy()) ** 2).sum(-1) for each in (noisy[0], noisy[1, :20])]
    levels = [np.log(each) - np.log(each).mean() for each in energies]
    for told, (before, ahead) in zip(found.loudness, ((0, 0), (1, 1), (2, 2), (6, 2), (12, 2)), strict=True):
        means = [
            np.array([x[max(0, t - before) : t + ahead + 1].mean() for t in range(len(x))]) for x in levels
        ]
        areas = np.mean([area(x, y) for x, (_, y) in zip(means, each, strict=True)])
        expected = {"correlation": np.corrcoef(np.concatenate(means), loud)[0, 1], "AUC": areas}
        assert told == pytest.approx({"frames": before + ahead + 1, **expected}, abs=1e-6)
        assert 0.1 < expected["AUC"] < 0.9


def test_a_gate_of_the_loudness_alone_has_its_area_and_a_higher_correlation(speech):
    random = torch.Generator().manual_seed(1)
    speaks = [torch.rand(300, generator=random) > 0.4 for _ in range(2)]
    loudness = [2.0 * each + torch.randn(300, generator=random).double() for each in speaks]
    gates = [torch.sigmoid(8 * (x - level)) for x, level in zip(loudness, (1.0, 1.1), strict=True)]
    gates[1] = gates[1] / 2 + 0.2  # another increasing function in the other recording
    told = [speech.analysis._told(each, speaks) for each in (loudness, gates)]
    expected = np.mean([area(x.numpy(), y.numpy()) for x, y in zip(loudness, speaks, strict=True)])
    assert told[0]["AUC"] == pytest.approx(expected) and told[1]["AUC"] == pytest.approx(expected)
    saturated = [speech.analysis._told([each[0]], speaks[:1])["correlation"] for each in (loudness, gates)]
    assert saturated[1] > saturated[0] + 0.02
    tied = speech.analysis.area(torch.zeros(4), torch.tensor([False, True, True, False]))
    assert tied == 0.5 and speech.analysis.area(gates[0], torch.ones(300).bool()) is None
    silent = [torch.zeros(300).bool(), speaks[1]]  # a recording without speech does not count
    assert speech.analysis._told(loudness, silent)["AUC"] == pytest.approx(
        area(loudness[1].numpy(), speaks[1].numpy())
    )


def plain_reference(model, noisy):
    """Compute the plain model for one recording [T, bins] by the sentences of A.2, frame by frame."""
    weights = {name: value.double() for name, value in model.state_dict().items()}

    def affine(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normed(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def leaky(x):
        return torch.where(x > 0, x, 0.01 * x)

    x = noisy
    for number in range(4):
        name, first = f"encoder.convolutions.{number}", -1 if number < 2 else -2  # the first frame it sees
        rows = []
        for t in range(len(x)):
            seen = [x[t + first + k] if 0 <= t + first + k < len(x) else 0 * x[0] for k in range(3)]
            taps = weights[f"{name}.conv.weight"].unbind(2)
            rows.append(sum(tap @ each for tap, each in zip(taps, seen, strict=True)))
        x = leaky(normed(torch.stack(rows) + weights[f"{name}.conv.bias"], f"{name}.norm"))
    for number in range(len(model.encoder.layers)):
        name, heads = f"encoder.layers.{number}", model.encoder.layers[number].self_attn.num_heads
        q, k, v = (affine(x, f"{name}.self_attn.{each}_proj").view(len(x), heads, -1) for each in "qkv")
        read = []
        for t in range(len(x)):
            scores = torch.einsum("hd,shd->hs", q[t], k[: t + 1]) / q.size(2) ** 0.5
            read.append(torch.einsum("hs,shd->hd", scores.softmax(1), v[: t + 1]).flatten())
        attended = affine(torch.stack(read), f"{name}.self_attn.out_proj")
        x = normed(x + attended, f"{name}.self_attn_layer_norm")
        inner = affine(leaky(affine(x, f"{name}.fc1")), f"{name}.fc2")
        x = normed(x + inner, f"{name}.final_layer_norm")
    return affine(x, "output")


def test_the_model_is_that_of_the_paper(speech):
    model, noisy = enhancer(speech, encoder_layers=2).double(), 5 * torch.rand(11, 129).double()
    for parameter in model.parameters():  # so that no bias is 0
        torch.nn.init.normal_(parameter, std=0.2)
    with torch.no_grad():
        found = model(noisy[None], torch.ones(1, 11, dtype=torch.bool))[0]
    torch.testing.assert_close(found, plain_reference(model, noisy), rtol=0, atol=1e-10)


def test_dropout_is_before_the_layers_and_in_them(speech):
    for where in (0, 2):
        model, noisy = enhancer(speech, encoder_layers=where, dropout=0.5), torch.rand(1, 9, 129)
        frames = torch.ones(1, 9, dtype=torch.bool)
        assert not torch.equal(model.train()(noisy, frames), model(noisy, frames))
        assert torch.equal(model.eval()(noisy, frames), model(noisy, frames))
    model = enhancer(speech, dropout=0.5)
    model.encoder.dropout = torch.nn.Identity()
    assert not torch.equal(model.train()(noisy, frames), model(noisy, frames))


def test_frames_with_speech_are_those_with_energy(speech):
    clean = torch.zeros(4, 129)
    clean[1] = 1.0
    clean[2] = (clean[1].expm1() / 99).log1p()  # 39.9 dB below
    clean[3] = (clean[1].expm1() / 101).log1p()
    assert speech.analysis.has_speech(clean).tolist() == [False, True, True, False]
    assert not speech.analysis.has_speech(torch.zeros(3, 129)).any()


class Known(torch.nn.Module):
    """Return given log magnitudes, whatever is read."""

    def __init__(self, log_magnitudes):
        super().__init__()
        self.log_magnitudes = log_magnitudes

    def forward(self, noisy, frames):
        return self.log_magnitudes.unsqueeze(0)


def test_a_wave_is_made_of_the_models_magnitudes_and_the_phases_of_the_noisy_one(speech):
    commands = importlib.import_module(f"{speech.__name__}.commands")
    frames, noisy = speech.audio.Frames(8000), 0.1 * torch.randn(4096)
    spectrum = frames.spectrum(noisy)
    halved = Known(speech.audio.log_magnitude(spectrum / 2))
    torch.testing.assert_close(commands.enhance(halved, noisy, frames), noisy / 2, rtol=0, atol=1e-5)


@pytest.fixture
def commands(speech, data, monkeypatch):
    """Return the commands of the example, which load the data and no model."""
    commands = importlib.import_module(f"{speech.__name__}.commands")
    task = speech.training.SpeechEnhancement.setup_task(
        speech.training.TaskOptions(data=str(data), sample_rate=8000)
    )
    monkeypatch.setattr(commands, "load", lambda path, folder: (None, task))
    return commands


def test_evaluate_compares_the_noisy_and_the_cleaned_wave_with_the_clean_one(
    speech, commands, data, tmp_path, monkeypatch
):
    """The model returns the clean recording, so it has nearly the best scores that there are.

    The test computes SI-SDR of the noisy recording itself.
    """
    clean = {}
    monkeypatch.setattr(commands, "enhance", lambda model, noisy, frames: clean[noisy.sum().item()])
    dataset = speech.data.SpeechData(speech.data.find(data / "test", 8000), 8000, (0, 0), 1, False)
    for index in range(len(dataset)):
        noisy, reference = dataset.waves(index)
        clean[noisy.sum().item()] = reference
    args = Namespace(path="", data=str(data), gen_subset="test", out=tmp_path / "scores.json")
    commands.evaluate(args)
    found = json.loads((tmp_path / "scores.json").read_text())
    for index, row in enumerate(found["recordings"]):
        noisy, reference = dataset.waves(index)
        alpha = (
            (noisy - noisy.mean()).dot(reference - reference.mean())
            / reference.var(correction=0)
            / len(noisy)
        )
        target = alpha * (reference - reference.mean())
        ratio = target.square().sum() / (noisy - noisy.mean() - target).square().sum()
        assert row["noisy si_sdr"] == pytest.approx(float(10 * ratio.log10()), abs=1e-2)
        assert row["model si_sdr"] > 60 and row["model pesq"] > 4.5 and row["model stoi"] > 0.999


def test_a_recording_that_cannot_be_scored_does_not_count_in_the_means(
    commands, data, tmp_path, monkeypatch, capsys
):
    """The model leaves nothing of the first recording, and does not change the others."""
    cleaned = []

    def enhance(model, noisy, frames):
        cleaned.append(noisy if cleaned else torch.zeros_like(noisy))
        return cleaned[-1]

    monkeypatch.setattr(commands, "enhance", enhance)
    args = Namespace(path="", data=str(data), gen_subset="test", out=tmp_path / "scores.json")
    commands.evaluate(args)
    found = json.loads((tmp_path / "scores.json").read_text())
    first, *others = found["recordings"]
    assert first["recording"] == "0000.wav" and "noisy pesq" in first and len(others) == 15
    for name in ("pesq", "si_sdr", "stoi"):
        mean = pytest.approx(np.mean([row[f"noisy {name}"] for row in others]))
        assert found["means"][f"noisy {name}"] == found["means"][f"model {name}"] == mean
    printed = capsys.readouterr().out
    assert f"15 recordings; left out: 0000.wav ({first['unscored']})\n" in printed
    assert first["unscored"].startswith("model: too short or")


def test_a_model_that_leaves_nothing_has_scores_all_the_same(
    commands, evidence, data, tmp_path, monkeypatch, capsys
):
    """`evaluate` fails, but writes what it knows, and the recordings count with the lowest PESQ."""
    monkeypatch.setattr(commands, "enhance", lambda model, noisy, frames: torch.zeros_like(noisy))
    args = Namespace(path="", data=str(data), gen_subset="test", out=tmp_path / "scores.json")
    with pytest.raises(UsageError, match="no recording of test can be scored: 0000.wav .model: too short or"):
        commands.evaluate(args)
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["means"] == {} and len(found["recordings"]) == 16
    claims = {"seeds": [1], "parts": ["test"], "rows": {"tim": ""}}
    claims["claims"] = [{"name": "a", "quantity": "pesq", "part": "test", "row": "tim", "baseline": "noisy"}]
    [gains] = evidence.differences(
        claims["claims"][0], records := {("tim", 1): {"parts": {"test": found}}}, claims
    )
    noisy = [row["noisy pesq"] for row in found["recordings"]]
    assert np.mean(list(gains.values())) == pytest.approx(1 - np.mean(noisy))
    cells = [cell.strip() for cell in evidence.scores(records, claims).splitlines()[3].split("|")[1:-1]]
    assert cells == ["test", "tim", "1", "1.000", "0 of 16", "", ""]

    def python(log, word, command, *words):
        if command == "evaluate":
            if "test" in words:
                words[-1].write_text(json.dumps(found))
            raise UsageError("it fails")

    monkeypatch.setattr(evidence, "python", python)
    log = '2030-01-01 00:00:00 | INFO | valid | {"valid_loss": "2.5", "valid_num_updates": "3"}\n'
    (tmp_path / "train.log").write_text(log)
    registered = {"train": "", "data": {}, **claims}
    assert evidence.make(tmp_path, "tim", 1, data, registered)["parts"]["test"] == found
    with pytest.raises(UsageError, match="it fails"):
        evidence.make(tmp_path, "tim", 1, data, registered | {"parts": ["valid"]})


def test_averaged_channels_and_new_rates(speech, tmp_path):
    samples = 0.1 * np.random.default_rng(1).normal(size=(4000, 2))
    soundfile.write(tmp_path / "stereo.wav", samples, 8000, subtype="FLOAT")
    found = speech.audio.read(tmp_path / "stereo.wav", 8000)
    torch.testing.assert_close(found, torch.from_numpy(samples.mean(axis=1)).float())
    time = np.arange(16000) / 16000
    soundfile.write(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 440 * time), 16000, subtype="FLOAT")
    tone = speech.audio.read(tmp_path / "tone.wav", 8000)
    expected = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(8000) / 8000)
    wave, _ = soundfile.read(tmp_path / "tone.wav")
    assert torch.equal(tone, torch.from_numpy(resample_poly(wave, 1, 2)).float())  # in float64
    assert len(tone) == 8000 and float((tone - expected)[100:-100].abs().max()) < 1e-2
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    with pytest.raises(UsageError, match="nan.wav has samples that are no numbers"):
        speech.audio.read(tmp_path / "nan.wav", 8000)


def test_the_task_mixes_training_by_its_options_and_other_parts_always_the_same(speech, data, tmp_path):
    shutil.copytree(data / "train", tmp_path / "train")
    shutil.copytree(data / "train", tmp_path / "valid")

    def ratios(split, **options):
        options = speech.training.TaskOptions(data=str(tmp_path), sample_rate=8000, **options)
        task = speech.training.SpeechEnhancement.setup_task(options)
        task.load_dataset(split)
        pairs = [task.dataset(split).waves(index) for index in range(12)]
        return [
            float(10 * (clean.square().mean() / (noisy - clean).square().mean()).log10())
            for noisy, clean in pairs
        ]

    chosen = {"snr_low": 3.0, "snr_high": 6.0, "seed": 2}
    found = ratios("train", **chosen)
    assert min(found) > 2.99 and max(found) < 6.01 and max(found) - min(found) > 1
    assert found != ratios("train", **{**chosen, "seed": 3})
    assert ratios("valid", **chosen, max_seconds=0.2) == ratios("valid", seed=5)
    assert max(ratios("valid", seed=5)) > 20


def test_what_cannot_be_scored_is_told(speech):
    score, wave = importlib.import_module(f"{speech.__name__}.scores").score, torch.randn(4000)
    assert score(wave, torch.zeros(4000), 8000) == "silent"
    assert score(wave[:500], wave[:500], 8000) == "too short or too silent for PESQ"
    third = 0.1 * torch.randn(2600)  # enough for PESQ, too short for STOI
    assert score(third, third, 8000) == "too short or too silent for STOI"
    with pytest.raises(UsageError, match="PESQ is defined for 8000 and 16000 Hz, not 11025"):
        score(wave, wave, 11025)


def refusals(folder):
    """Yield folders that are no data, each with what is wrong about it."""
    yield folder / "nothing", "nothing is no folder; give the folder that holds it"
    (folder / "half/clean").mkdir(parents=True)
    yield folder / "half", "must have a folder clean/ with speech, and a folder noise/"
    (folder / "empty/clean").mkdir(parents=True)
    (folder / "empty/noise").mkdir()
    for kind in ("clean", "noisy", "noise"):
        sound(folder / "both" / kind, "a.wav")
    yield folder / "both", "both has noise/ and noisy/; keep noisy/ for pairs"
    yield folder / "empty", "has no audio file (.wav or .flac); give another folder"
    sound(folder / "lonely/clean", "a.wav")
    sound(folder / "lonely/noisy", "b.wav")
    yield folder / "lonely", "clean/a.wav has no partner in"
    sound(folder / "extra/clean", "a.wav")
    for name in ("a.wav", "b.wav"):
        sound(folder / "extra/noisy", name)
    yield folder / "extra", "noisy/b.wav has no partner in"
    sound(folder / "damaged/noise", "n.wav")
    (folder / "damaged/clean").mkdir()
    (folder / "damaged/clean/a.wav").write_bytes(b"RIFF of nothing")
    yield folder / "damaged", "a.wav cannot be read as audio"
    sound(folder / "short/noise", "n.wav")
    sound(folder / "short/clean", "a.wav", seconds=0)
    yield folder / "short", "a.wav has no sound; remove it"


def test_folders_that_are_no_data_are_refused(speech, tmp_path):
    for folder, sentence in refusals(tmp_path):
        with pytest.raises(UsageError) as error:
            speech.data.find(folder, 8000)
        assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sample_rate": 11025}, "--sample-rate must be a multiple of 125 Hz and at least 1000, not 11025"),
        ({"snr_low": 41.0}, "--snr-low 41.0 must not be above --snr-high 40.0"),
        ({"max_seconds": -1.0}, "--max-seconds must be 0 or at least 0.1, not -1.0"),
    ],
)
def test_options_of_the_task_that_cannot_work_are_refused(speech, options, sentence):
    with pytest.raises(UsageError, match=sentence.replace("+", "[+]")):
        speech.training.SpeechEnhancement.setup_task(speech.training.TaskOptions(data="", **options))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "transformer"], "--arch transformer does not read speech; give speech_enhancer_base,"),
        (
            ["--arch", "speech_enhancer_base", "--criterion", "cross_entropy"],
            "--criterion cross_entropy is not for speech; give log_magnitude_mse",
        ),
    ],
)
def test_models_and_criterions_of_words_are_refused(data, tmp_path, words, sentence):
    with pytest.raises(UsageError) as error:
        run_train(data, *TRAIN.split(), *words, "--save-dir", tmp_path / "m", common=())
    assert sentence in str(error.value)


def test_ratios_without_effect_are_refused(speech, tmp_path):
    for kind in ("clean", "noisy"):
        sound(tmp_path / "train" / kind, "a.wav")
    for options, refused in (({}, False), ({"snr_low": 5.0}, True), ({"snr_high": 20.0}, True)):
        options = speech.training.TaskOptions(data=str(tmp_path), sample_rate=8000, **options)
        task = speech.training.SpeechEnhancement.setup_task(options)
        with pytest.raises(UsageError, match="have no effect") if refused else nullcontext():
            task.load_dataset("train")


def test_the_commands_refuse_in_one_sentence(speech, model, data, toys, tmp_path, monkeypatch):
    commands = importlib.import_module(f"{speech.__name__}.commands")
    for words, sentence in (
        (
            ["clean", tmp_path / "no.wav", "--path", model, "--out", tmp_path / "o.wav"],
            "no.wav is no file; give a WAV or FLAC file",
        ),
        (
            ["clean", data / "test/clean/0000.wav", "--path", model, "--out", tmp_path / "o.mp3"],
            "ends in .wav",
        ),
        (
            ["evaluate", data, "--path", model, "--out", tmp_path],
            "is a folder; give a file",
        ),
        (
            ["clean", data / "test/clean/0000.wav", "--path", model, "--out", tmp_path / "no/o.wav"],
            "is no folder; give a file in one that exists",
        ),
        (
            ["clean", data / "test/clean/0000.wav", "--path", tmp_path / "no.pt", "--out", "o.wav"],
            "no.pt",
        ),
        (["toys", model / "toys"], "toys cannot be written ("),
        (["digits", tmp_path, tmp_path, "--out", data], "exists; remove it, or give another folder"),
        (
            ["digits", toys / "digits", toys / "noises", "--test-speaker", "carl", "--test-noise", "hum"]
            + ["--out", model / "a/b"],
            "cannot be made (Not a directory); give another folder",
        ),
        (
            ["evaluate", data, "--path", model, "--gen-subset", "tset"],
            "has the parts test, test-known, train, valid",
        ),
    ):
        monkeypatch.setattr("sys.argv", ["speech_enhancement", *map(str, words)])
        with pytest.raises(SystemExit) as error:
            commands.main(None)
        said = str(error.value)
        assert said.startswith("speech_enhancement: error: ") and sentence in said and "\n" not in said


@pytest.fixture(scope="module")
def evidence():
    return script("speech_evidence")


def test_the_evidence_is_made_from_registered_data_and_shown(evidence, data, tmp_path, monkeypatch, capsys):
    """One run is trained. The records of the others are made from it."""
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "results")
    changed = []  # files that differ from the commit at which a run began
    runs = sys.modules["recorded_runs"]
    monkeypatch.setattr(runs, "git", lambda word, *_: "0123abc" if word == "rev-parse" else "".join(changed))
    (tmp_path / "results").mkdir()
    words = TRAIN.removeprefix(f"--user-dir {EXAMPLE} ")
    claim = {"says": "it", "expected": "above", "printed": "none", "row": "tim"}
    claims = {
        "data": {"train": "0123", "missing": "4567"},
        "parts": ["test-known"],
        "seeds": [1],
        "train": f"{words} --log-format json --num-workers 0",
        "rows": {"tim": "--arch tim_speech_enhancer --tim-layers all"},
        "claims": [
            {**claim, "name": "a", "quantity": "pesq", "part": "test-known", "baseline": "noisy"},
            {**claim, "name": "b", "quantity": "pesq", "part": "test-known", "baseline": "plain"},
            {**claim, "name": "c", "quantity": "speech"},
            {**claim, "name": "d", "quantity": "depth"},
        ],
    }
    shutil.copytree(data, tmp_path / "work/data")
    args = Namespace(work=tmp_path / "work", jobs=1)
    with pytest.raises(UsageError, match="has the digest .*, and 0123 is registered; prepare the same"):
        evidence.run(args, claims)
    claims["data"] = evidence.sums(tmp_path / "work/data")
    evidence.run(args, claims)
    record = json.loads((tmp_path / "results/tim-1.json").read_text())
    assert record["data"] == claims["data"] and len(record["losses"]) == 2 and record["commit"] == "0123abc"
    assert record["made"]["torch"] == torch.__version__
    assert (record["made"]["device"] == "cpu") != torch.cuda.is_available()
    changed.append("modular_fairseq/modules/attention.py")
    with pytest.raises(
        UsageError, match="tim-1 is of commit 0123abc, and modular_fairseq/modules/attention.py d"
    ):
        evidence.comparison_of(claims).begin(tmp_path / "work/tim-1", {})
    with pytest.raises(UsageError, match="tim-1.json is of commit 0123abc, and modular_fairseq/modules/att"):
        evidence.run(args, claims)
    changed.clear()
    modified = (tmp_path / "results/tim-1.json").stat().st_mtime_ns
    evidence.run(args, claims)  # makes nothing again
    assert (tmp_path / "results/tim-1.json").stat().st_mtime_ns == modified
    rows = record["parts"]["test-known"]["recordings"]
    gains = np.array([row["model pesq"] - row["noisy pesq"] for row in rows])
    record["competition"]["valid"]["loudness"][0]["AUC"] = 1.0
    (tmp_path / "results/tim-1.json").write_text(json.dumps(record))
    for seed, better in ((1, 0.5), (2, 0.5), (2, 0.0)):  # a plain model that is half a point worse
        other = json.loads(json.dumps(record))
        for row in other["parts"]["test-known"]["recordings"]:
            row["model pesq"] -= better
        if not better:  # the seeds differ in what is said of competition
            judged = other["competition"]["test"]
            for row, higher in zip(judged["loudness"], (0.2, 0.3, 0.3, 0.3, 0.3), strict=True):
                row["AUC"] += higher
            judged["layers"][0]["entropy"] += 0.4
            last = judged["layers"][-1]  # the mechanism that is the better one on valid is the other one here
            last["AUC c1"], last["AUC c2"] = last["AUC c2"], last["AUC c1"]
            broken = other["parts"]["test-known"]["recordings"][0]
            other["parts"]["test-known"]["recordings"][0] = {
                name: value for name, value in broken.items() if not name.startswith("model")
            } | {"unscored": "model: too short"}
        name = "plain" if better else "tim"
        other |= {"row": name, "seed": seed}
        (tmp_path / f"results/{name}-{seed}.json").write_text(json.dumps(other))
    claims |= {"seeds": [1, 2, 3], "rows": {"plain": claims["rows"]["tim"], **claims["rows"]}}
    capsys.readouterr()
    evidence.table(args, claims)
    text = capsys.readouterr().out
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line}
    lost = (rows[0]["model pesq"] - 1) / 2 / len(rows)  # a model leaves nothing of one
    assert f"{gains.mean() - lost:+.3f} [" in lines["a"] and f"{0.5 - lost:+.3f} [" in lines["b"]
    scores = {
        cells[1]: cells[2:]
        for cells in (re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines())
        if cells and cells[0] == "test-known"
    }
    stoi = {which: np.mean([row[f"{which} stoi"] for row in rows[1:]]) for which in ("noisy", "model")}
    noisy, model = (np.mean([row[f"{which} pesq"] for row in rows]) for which in ("noisy", "model"))
    assert [scores["noisy"][i] for i in (0, 1, 2, 4)] == [
        "",
        f"{noisy:.3f}",
        "7 of 8",
        f"{stoi['noisy']:.3f}",
    ]
    assert scores["tim"][:2] == ["2", f"{model - lost:.3f}"] and scores["tim"][4] == f"{stoi['model']:.3f}"
    assert scores["plain"][:2] == ["2", f"{model - 0.5:.3f}"]
    known, judged = (record["competition"][part]["layers"][-1] for part in ("valid", "test"))
    best, worse = sorted(("AUC c1", "AUC c2"), key=lambda name: -known[name])
    mean = (judged[best] + judged[worse]) / 2
    loudness = record["competition"]["test"]["loudness"][0]["AUC"] + 0.1
    assert f"{mean - loudness:+.3f} [" in lines["c"]
    layers = record["competition"]["test"]["layers"]
    assert f"{layers[-1]['entropy'] - layers[0]['entropy'] - 0.2:+.3f} [" in lines["d"]
    counts = {name: [cell.strip() for cell in lines[name].split("|")[-3:-1]] for name in "abcd"}
    pesq, seeds = ["2 of 3", "8 of 8"], ["2 of 3", ""]
    assert counts == {"a": pesq, "b": pesq, "c": seeds, "d": seeds}
    other["options"] += " --seed 5"
    (tmp_path / "results/tim-2.json").write_text(json.dumps(other))
    for command in (evidence.run, evidence.table):
        with pytest.raises(UsageError, match="tim-2.json: options is not what this comparison has; remove"):
            command(args, claims)


@pytest.fixture
def compared(evidence, tmp_path, monkeypatch):
    """A comparison of the rows a, b and c with the seeds 1 and 2."""
    runs = sys.modules["recorded_runs"]
    monkeypatch.setattr(runs, "git", lambda word, *_: "0123abc" * (word == "rev-parse"))
    for name in ("results", "work"):
        (tmp_path / name).mkdir()
    return runs.Comparison(tmp_path / "results", [1, 2], {"a": "", "b": "", "c": ""}, {}, ())


def test_runs_are_made_side_by_side_and_none_begins_after_a_failure(compared, tmp_path, monkeypatch, capsys):
    """The second run fails while the first one is made, which is finished."""
    together, failed, begun = threading.Barrier(2), threading.Event(), []

    def make(folder, row, seed):
        begun.append(folder.name)
        together.wait(60)  # neither run ends before the other one is made, too
        if row == "b":
            raise UsageError("no memory")
        assert failed.wait(60)
        return {"score": seed}

    def tell(*words, **options):
        print(*words, **options)
        failed.set()

    monkeypatch.setattr(sys.modules["recorded_runs"], "print", tell, raising=False)
    with pytest.raises(UsageError, match="^no memory$"):
        compared.make(tmp_path / "work", make, jobs=2)
    assert sorted(begun) == ["a-1", "b-1"] and list(compared.records()) == [("a", 1)]
    assert "b-1 failed: no memory" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_stops_the_other_runs(compared, tmp_path):
    begun = []

    def make(folder, row, seed):
        begun.append(folder.name)
        compared.path(row, seed).mkdir()
        return {}

    with pytest.raises(OSError):
        compared.make(tmp_path / "work", make)
    assert begun == ["a-1"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_the_commands_and_leaves_no_record(compared, tmp_path, jobs):
    """The commands end with status 0 when they are interrupted, as JoeyNMT does."""
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    runs = sys.modules["recorded_runs"]
    code = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
time.sleep(6000)
"""
    going, ended = [], []

    def make(folder, row, seed):
        going.append(folder / "going")
        runs.call([sys.executable, "-c", code, going[-1]], folder / "log", own=False)
        ended.append(folder)
        return {}

    def interrupt():
        try:
            wait_for(lambda: len(going) == jobs and all(path.exists() for path in going))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            compared.make(tmp_path / "work", make, jobs=jobs)
    finally:
        signal.signal(signal.SIGINT, ignored)
    thread.join()
    assert len(going) == jobs and not ended and not compared.records()


@pytest.mark.parametrize(
    ("name", "words"), [("speech_evidence", []), ("toolkits", ["corpus", "--joeynmt", "p"])]
)
@pytest.mark.parametrize("jobs", ["0", "-1", "x"])
def test_a_number_of_jobs_is_at_least_one(name, words, jobs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "run", *words, "--work", "w", "--jobs", jobs])
    with pytest.raises(SystemExit):
        script(name).main()
    assert f"argument --jobs: must be a whole number of at least 1, not {jobs}" in capsys.readouterr().err


def test_a_run_depends_on_its_code_alone(evidence, tmp_path, monkeypatch):
    """Records of other runs may be committed beside a run, and code may not change."""
    runs, work = sys.modules["recorded_runs"], tmp_path / "work"
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    runs.git("init", "-q")
    for name in ("modular_fairseq/a.py", "results/speech/claims.yaml", "results/speech/plain-1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    runs.git("add", ".")
    words = ["-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "-a", "-m", "a"]
    runs.git(*words)
    compared = runs.Comparison(tmp_path / "results", [1], {"plain": ""}, {}, evidence.CODE)
    about = {"row": "plain", "seed": 1}
    began = compared.begin(work, about)
    assert len(began) == 40
    (tmp_path / "results/speech/plain-1.json").write_text("b")
    assert compared.begin(work, about) == began
    runs.git(*words)
    assert compared.begin(work, about) == began
    for name in ("modular_fairseq/a.py", "results/speech/claims.yaml"):
        (tmp_path / name).write_text("b")
        with pytest.raises(UsageError, match=f"{began}, and {name} differs from it; run in a clone"):
            compared.begin(work, about)
        (tmp_path / name).write_text("a")
    assert compared.begin(work, about) == began
    with pytest.raises(UsageError, match="work: seed is not what this comparison has; remove the folder"):
        compared.begin(work, about | {"seed": 2})
    (work / "run.json").write_text(json.dumps(about | {"commit": "0" * 40}))
    with pytest.raises(UsageError, match="git diff failed .*; run in a clone that has the commit"):
        compared.begin(work, about)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/checkpoint_last.pt").write_text("")
    with pytest.raises(UsageError, match="old has files of another run, as it has no run.json; remove the f"):
        compared.begin(tmp_path / "old", about)
    (tmp_path / "modular_fairseq/b.py").write_text("not committed")
    with pytest.raises(UsageError, match="new is of commit .*, and modular_fairseq/b.py differs from it"):
        compared.begin(tmp_path / "new", about)
    assert not (tmp_path / "new").exists()
    runs.git("add", "modular_fairseq")
    runs.git(*words)
    compared = compared._replace(seeds=[1, 2])
    for seed, commit in ((1, began), (2, runs.git("rev-parse", "HEAD"))):
        record = compared.about("plain", seed) | {"commit": commit}
        (tmp_path / f"results/plain-{seed}.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"plain-1.json and .* by different code \(modular_fairseq/b.py\)"):
        compared.records()
    (tmp_path / "results/plain-2.json").unlink()
    with (
        runs.only_one(work),
        pytest.raises(UsageError, match="another process works in it; wait for it, or give another --work"),
    ):
        compared.make(work, lambda *_: pytest.fail("made"))
    with pytest.raises(UsageError, match="plain-1.json is of commit .*, and modular_fairseq/b.py differs"):
        compared.make(tmp_path, lambda *_: pytest.fail("made"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends any program with its parent")
def test_a_killed_comparison_leaves_no_command_behind(tmp_path, real_commands):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from recorded_runs import call
call([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(6000)"], Path("log"))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    child = int(line_of(tmp_path / "log"))
    parent.kill()
    parent.wait()
    assert has_ended(child)


def test_an_epoch_that_a_killed_run_has_repeated_counts_once(evidence, tmp_path):
    log = tmp_path / "train.log"
    lines = [
        f'2030-01-01 00:00:00 | INFO | valid | {{"valid_loss": "{loss}", "valid_num_updates": "{epoch}"}}'
        for epoch, loss in ((1, 3.0), (2, 2.5), (2, 2.5), (3, 2.2))
    ]
    log.write_text("\n".join([*lines[:2], lines[2][:60]]))
    sys.modules["recorded_runs"].call([sys.executable, "-c", f"print({chr(10).join(lines[2:])!r})"], log)
    assert evidence.losses(log) == [3.0, 2.5, 2.2]


def test_a_damaged_record_is_named(compared, tmp_path):
    compared.path("a", 1).write_text('{"row":')
    with pytest.raises(UsageError, match="a-1.json: cannot be read .*; remove the record"):
        compared.records()
    (tmp_path / "work/a-1").mkdir()
    (tmp_path / "work/a-1/run.json").write_text('{"row":')
    with pytest.raises(UsageError, match="a-1/run.json: cannot be read .*; remove the folder"):
        compared.begin(tmp_path / "work/a-1", {})


def test_a_program_of_another_environment_imports_nothing_from_here(evidence, tmp_path):
    code = f"import sys; print([path for path in sys.path if path in ('', {str(ROOT)!r})])"
    for own, found in ((True, ["", str(ROOT)]), (False, [])):
        sys.modules["recorded_runs"].call([sys.executable, "-c", code], tmp_path / f"{own}.log", own)
        assert (tmp_path / f"{own}.log").read_text().strip() == str(found)


def test_paths_are_those_of_the_folder_in_which_the_command_is_called(evidence, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(evidence, "prepare", lambda args, claims: seen.append(args))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["speech_evidence.py", "digits", "d", "n", "/p", "--work", "w"])
    evidence.main()
    [args] = seen
    assert (args.digits, args.noises, args.work) == (tmp_path / "d", tmp_path / "n", tmp_path / "w")
    assert str(args.pairs) == "/p"
