"""Test that pictures are prepared as text, drawn by a language model, and analysed by their regions."""

import gzip
import json
import os
import shutil
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modular_fairseq.analysis import analyze
from modular_fairseq.analysis.regions import BetweenRegions
from modular_fairseq.drawing.sampling import draw
from modular_fairseq.loading import load
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evaluations.model_analyses import CompetitionInPictures
from modular_fairseq.runs.run import Run
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.pixels import palette, shape
from modular_fairseq_cli.pixels.image_grid import grid
from modular_fairseq_cli.pixels.prepare import composites, divide
from modular_fairseq_cli.pixels.sources import Source, read
from tests.fairseq_commands import run_train
from tests.language_models import build
from tests.refusals import refusal

SIZE = ["--size", "4x3", "--colours", "6", "--grey", "--valid", "4", "--test", "4"]
SMALL = (
    "--task language_modeling --arch tim_transformer_lm_pixels --decoder-layers 2 --tim-layers all "
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --sample-break-mode eos "
    "--tokens-per-sample 25 --optimizer adam --lr 0.01 --max-tokens 200 --max-update 12 "
    "--no-epoch-checkpoints"
)


def idx(pictures):
    """Return the bytes of an IDX file of pictures [N, H, W]."""
    return struct.pack(">IIII", 0x0803, *pictures.shape) + pictures.tobytes()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Write dark pictures as an IDX file, and bright ones in colour as an .npz file with its own tests."""
    folder, random = tmp_path_factory.mktemp("sources"), np.random.default_rng(1)
    dark = random.integers(0, 100, (40, 4, 3), dtype=np.uint8)
    (folder / "dark.gz").write_bytes(gzip.compress(idx(dark)))
    bright = random.integers(100, 256, (30, 8, 6, 3), dtype=np.uint8)
    np.savez(folder / "bright.npz", x_train=bright[:20], x_test=bright[20:], y_train=np.arange(20))
    return folder


@pytest.fixture(scope="module")
def pairs(sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "out"
    prepare(sources / "dark.gz", "--right", sources / "bright.npz", "--out", out, *SIZE)
    return out


@pytest.fixture(scope="module")
def model(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    run_train(pairs / "bin", *SMALL.split(), "--save-dir", folder, common=())
    return folder / "checkpoint_last.pt"


def prepare(*words):
    cli.main(["prepare-pixels", *map(str, words)])


def numbers(path):
    """Return the lines of a text of numbers [pictures, pixels]."""
    return np.loadtxt(path, dtype=int, ndmin=2)


def test_each_side_of_a_picture_is_from_its_source_and_its_split(sources, pairs):
    dark = read(sources / "dark.gz", 4, 3, 1).pictures
    bright = read(sources / "bright.npz", 4, 3, 1)
    about = shape.read(pairs / "bin")
    assert (about.height, about.width) == (4, 6) and about.regions == {"left": (0, 3), "right": (3, 6)}
    colours = np.array(about.palette)
    assert colours.shape == (6, 1) and (np.diff(colours[:, 0]) > 0).all()  # from dark to bright
    seen = {}
    for split, count in (("train", 32), ("valid", 4), ("test", 4)):
        found = numbers(pairs / f"text/{split}.txt").reshape(-1, 4, 6)
        assert len(found) == count
        for side, pictures in (("left", dark), ("right", np.concatenate([bright.pictures, bright.test]))):
            known = palette.indices(pictures, colours.astype(np.uint8))
            half = found[..., slice(*about.regions[side])]
            where = [{n for n, each in enumerate(known) if (each == picture).all()} for picture in half]
            assert all(where)
            seen[side, split] = set().union(*where)
    for side in ("left", "right"):
        assert not seen[side, "train"] & seen[side, "valid"] and not seen[side, "train"] & seen[side, "test"]
        assert not seen[side, "valid"] & seen[side, "test"]
    assert min(seen["right", "test"]) >= 20  # the source sets them aside for tests


def test_each_picture_is_a_document(pairs):
    for split, count in (("train", 32), ("valid", 4), ("test", 4)):
        assert (pairs / f"text/{split}.documents").read_text() == "1\n" * count


def test_the_number_of_training_pictures_may_be_given(sources, tmp_path):
    words = (sources / "dark.gz", *SIZE, "--train")
    prepare(*words, 10, "--out", tmp_path / "few")
    assert len(numbers(tmp_path / "few/text/train.txt")) == 10
    said = refusal(prepare, *words, 33, "--out", tmp_path / "many")
    assert "40 different pictures, which is too few for --valid 4, --test 4 and 33 for training" in said


def test_the_dictionary_has_the_colours_in_their_order(pairs):
    types = [line.split()[0] for line in (pairs / "bin/dict.txt").read_text().splitlines()]
    assert types[:6] == [*"012345"] and all(name.startswith("madeupword") for name in types[6:])
    assert (4 + len(types)) % 8 == 0


def test_the_same_command_does_nothing_and_another_is_refused(sources, pairs, capsys):
    words = (sources / "dark.gz", "--right", sources / "bright.npz", "--out", pairs, *SIZE)
    before = (pairs / "bin/train.bin").stat()
    prepare(*words)
    assert "is already prepared; nothing to do" in capsys.readouterr().err
    assert (pairs / "bin/train.bin").stat() == before
    assert "was prepared with seed 1 (now 2)" in refusal(prepare, *words, "--seed", 2)


def test_a_folder_that_cannot_be_written_or_read_is_one_sentence(sources, tmp_path):
    words = (sources / "dark.gz", *SIZE, "--out")
    said = refusal(prepare, *words, tmp_path / "a,b")
    assert "a,b: fairseq cannot read data from a folder with , or : in its name" in said
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.lock").symlink_to(tmp_path / "no/lock")
    assert "out/.lock: No such file or directory" in refusal(prepare, *words, tmp_path / "out")


def test_the_same_seed_writes_the_same_files(sources, pairs, tmp_path):
    words = (sources / "dark.gz", "--right", sources / "bright.npz", *SIZE)
    for name, seed in (("same", 1), ("other", 2)):
        prepare(*words, "--out", tmp_path / name, "--seed", seed)
    first, same, other = ((path / "bin/train.bin").read_bytes() for path in (pairs, *sorted_paths(tmp_path)))
    assert first == same != other


def sorted_paths(folder):
    return folder / "same", folder / "other"


@pytest.mark.parametrize("archive", ["", "images.tar.xz", "images.tar"])
def test_images_of_a_folder_or_archive_are_averaged_over_areas_in_colour(tmp_path, archive):
    for part in ("train", "test"):
        (tmp_path / part / "cats").mkdir(parents=True)
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[:2, :2] = [[[200, 0, 0], [100, 0, 0]], [[0, 40, 0], [0, 0, 80]]]
    Image.fromarray(picture).save(tmp_path / "train/cats/1.png")
    Image.fromarray(picture[..., 0]).save(tmp_path / "test/cats/2.png")  # in grey
    if archive:
        with tarfile.open(tmp_path / archive, "w:xz" if archive.endswith("xz") else "w") as file:
            for part in ("test", "train"):
                file.add(tmp_path / part, f"images/{part}")
            link = tarfile.TarInfo("images/train/dogs/1.png")  # the same file by another name
            link.type, link.linkname = tarfile.LNKTYPE, "images/train/cats/1.png"
            file.addfile(link)
    found = read(tmp_path / archive, 2, 2, 3)
    assert found.pictures.shape == (2 if archive else 1, 2, 2, 3) and found.test.shape == (1, 2, 2, 3)
    for picture in found.pictures:
        assert picture[0, 0].tolist() == [75, 10, 20] and not picture[1].any()
    assert found.test[0, 0, 0].tolist() == [75, 75, 75]


def test_folders_may_be_in_another_one_and_what_is_in_neither_part_is_told(tmp_path, capsys):
    for part, colour in (("train", 1), ("test", 2), ("extra", 3)):
        (tmp_path / "images" / part).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), colour, np.uint8)).save(tmp_path / f"images/{part}/1.png")
    found = read(tmp_path, 2, 2, 1)
    assert [found.pictures.ravel()[0], found.test.ravel()[0]] == [1, 2] and len(found.pictures) == 1
    assert "1 of 3 pictures are in neither train/ nor test/, and left out" in capsys.readouterr().err


def test_linked_folders_are_read_and_pictures_are_upright(tmp_path):
    (tmp_path / "store").mkdir()
    upright = np.array([[0, 0, 0], [90, 90, 90]], np.uint8)
    turned = Image.fromarray(upright[::-1])  # as a camera writes it that was held upside down
    turned.getexif()[0x0112] = 3
    turned.save(tmp_path / "store/1.png", exif=turned.getexif())
    (tmp_path / "all").mkdir()
    (tmp_path / "all/train").symlink_to(tmp_path / "store")
    (tmp_path / "all/test").symlink_to(tmp_path / "store")
    (tmp_path / "store/all").symlink_to(tmp_path / "all")  # leads back to where it is
    found = read(tmp_path / "all", 2, 3, 1)
    assert found.pictures[..., 0].tolist() == found.test[..., 0].tolist() == [upright.tolist()]


def test_a_folder_whose_images_have_changed_is_another_source(tmp_path):
    (tmp_path / "images").mkdir()
    for colour in range(12):
        Image.fromarray(np.full((4, 3), 20 * colour, np.uint8)).save(tmp_path / f"images/{colour}.bmp")
    shutil.copy(tmp_path / "images/1.bmp", os.fsencode(tmp_path) + b"/images/\xfc.bmp")  # in Latin-1
    words = (tmp_path / "images", "--out", tmp_path / "out", *SIZE)
    prepare(*words)
    shutil.copy(tmp_path / "images/1.bmp", tmp_path / "images/2.bmp")  # as many bytes
    (tmp_path / "images/notes.txt").write_text("not read")
    assert "was prepared with sources [" in refusal(prepare, *words)


def test_a_picture_that_occurs_twice_is_in_one_split():
    random = np.random.default_rng(1)
    pictures = random.integers(0, 2, (200, 2, 2, 1), dtype=np.uint8)  # 16 different ones
    found = divide(Source(pictures, pictures[:0]), {"train": None, "valid": 3, "test": 3}, None, seed=1)
    keys = [{each.tobytes() for each in part} for part in found.values()]
    assert [len(each) for each in keys] == [10, 3, 3] and len(set.union(*keys)) == 16
    with pytest.raises(UsageError, match="p has 16 different pictures, which is too few for --valid 9"):
        divide(Source(pictures, pictures[:0]), {"train": None, "valid": 9, "test": 9}, "p", seed=1)
    with pytest.raises(UsageError, match="p has 8 different pictures and 8 others for tests, which"):
        parts = Source(np.unique(pictures, axis=0)[:8], pictures)
        divide(parts, {"train": None, "valid": 8, "test": 9}, "p", seed=1)


def test_a_side_is_used_as_often_as_it_must():
    left = {split: np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1) for split in ("train", "valid", "test")}
    right = {split: np.arange(2, dtype=np.uint8).reshape(2, 1, 1, 1) for split in ("train", "valid", "test")}
    found = composites(left, right, {"train": None, "valid": 2, "test": 4}, seed=3)
    assert [len(each) for each in found.values()] == [5, 2, 4]
    assert sorted(found["train"][:, 0, 0, 0]) == [*range(5)]
    assert sorted(np.bincount(found["train"][:, 0, 1, 0])) == [2, 3]


def test_k_means_finds_the_colours_of_groups():
    random = np.random.default_rng(2)
    groups = np.array([[10, 10, 10], [120, 200, 30], [250, 240, 250]])
    pixels = groups[random.integers(0, 3, 3000)] + random.integers(-3, 4, (3000, 3))
    found = palette.learn(pixels.astype(np.uint8).reshape(30, 10, 10, 3), 3, seed=1)
    assert np.abs(found.astype(int) - groups).max() <= 2
    few = np.array([[0, 9], [9, 255]], np.uint8).reshape(1, 2, 2, 1)
    assert palette.learn(few, 8, seed=1).tolist() == [[0], [9], [255]]  # as they are


def test_each_pixel_gets_its_nearest_colour_and_of_two_the_darker_one():
    random = np.random.default_rng(4)
    pictures = random.integers(0, 256, (3, 50, 40, 3), dtype=np.uint8)
    colours = np.unique(random.integers(0, 256, (90, 3), dtype=np.uint8), axis=0)
    colours = colours[np.argsort(palette.brightness(colours), kind="stable")]
    distances = ((pictures[..., None, :].astype(int) - colours.astype(int)) ** 2).sum(-1)
    assert np.array_equal(palette.indices(pictures, colours), distances.argmin(-1))
    assert palette.indices(np.full((1, 1, 1, 1), 10, np.uint8), np.array([[8], [12]], np.uint8)) == 0


def test_a_preparation_that_was_killed_continues(sources, pairs, tmp_path, monkeypatch):
    from modular_fairseq_cli.pixels import prepare as stages

    def killed(out, part):
        raise KeyboardInterrupt

    words = (sources / "dark.gz", "--right", sources / "bright.npz", "--out", tmp_path / "out", *SIZE)
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(stages, "_binarize", killed)
        prepare(*words)
    assert not (tmp_path / "out/bin").exists() and (tmp_path / "out/text").is_dir()
    assert "was prepared with seed 1 (now 2)" in refusal(prepare, *words, "--seed", 2)
    prepare(*words)
    assert (tmp_path / "out/bin/train.bin").read_bytes() == (pairs / "bin/train.bin").read_bytes()


def test_other_arrays_of_an_npz_file_are_not_read(tmp_path, sources):
    with np.load(sources / "bright.npz") as file:
        names = np.array(["cat", 1], dtype=object)  # numpy reads it by pickle only
        np.savez(tmp_path / "named.npz", **{**file, "names": names})
    found, expected = (
        read(path, 4, 3, 3).pictures for path in (tmp_path / "named.npz", sources / "bright.npz")
    )
    assert len(found) == 20 and np.array_equal(found, expected)


def test_bad_sources_are_one_sentence(tmp_path, sources, monkeypatch):
    (tmp_path / "cut.idx").write_bytes(idx(np.zeros((3, 4, 3), np.uint8))[:-1])
    (tmp_path / "none.idx").write_bytes(idx(np.zeros((0, 4, 3), np.uint8)))
    (tmp_path / "text").write_text("no picture at all, but more than sixteen bytes")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b" + bytes(20))
    (tmp_path / "cut.gz").write_bytes((sources / "dark.gz").read_bytes()[:200])
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04" + bytes(20))
    np.savez(tmp_path / "many.npz", a=np.zeros((2, 3, 3), np.uint8), b=np.zeros((2, 3, 3), np.uint8))
    np.savez(tmp_path / "real.npz", x_train=np.zeros((2, 3, 3)))
    np.savez(tmp_path / "clear.npz", x_train=np.zeros((2, 3, 3, 4), np.uint8))
    with open(tmp_path / "single.npz", "wb") as file:
        np.save(file, np.zeros((2, 3, 3), np.uint8))
    for name, pixels in (
        ("deep", np.full((4, 3), 3000, np.uint16)),
        ("glass", np.zeros((4, 3, 4), np.uint8)),
    ):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images/1.png").write_bytes(b"no image")
    with tarfile.open(tmp_path / "archive.tar", "w") as file:
        file.add(tmp_path / "images/1.png", "1.png")
        file.add(tmp_path / "text", "text")
    for name, kept in (("cut.tar", 1600), ("half.tar", 2048)):  # in a file, and after a whole one
        (tmp_path / name).write_bytes((tmp_path / "archive.tar").read_bytes()[:kept])
    whole = bytearray((tmp_path / "archive.tar").read_bytes())
    whole[2048 + 200] ^= 1  # in the header of the second file
    (tmp_path / "flip.tar").write_bytes(whole)
    for name, sentence in (
        ("cut.idx", "has 35 bytes of pictures and not 36, so it is damaged"),
        ("none.idx", "has no picture; give another source"),
        ("text", "is no IDX file of pictures; give one such as"),
        ("bad.gz", "cannot be read ("),
        ("cut.gz", "cannot be read ("),
        ("bad.npz", "cannot be read as an .npz file ("),
        ("many.npz", "has the arrays a, b; it needs x_train and perhaps x_test, or one array of pictures"),
        ("real.npz", "has pictures of shape [3, 3, 1] and type float64; give bytes (uint8) of shape"),
        ("deep", "deep/1.png has more than 8 bits in a channel; convert it to 8 bits"),
        ("clear.npz", "has transparent pixels, whose colour is not known; put it on a background"),
        (
            "single.npz",
            "cannot be read as an .npz file (it has a single array without a name",
        ),
        ("glass", "glass/1.png has transparent pixels, whose colour is not known; put it on a background"),
        ("empty", "has no image files ("),
        ("archive.tar", "archive.tar/1.png is no image, or is damaged ("),
        ("cut.tar", "cannot be read as an archive ("),
        ("half.tar", "cannot be read as an archive (it ends early, or a part of it is damaged); get it"),
        ("flip.tar", "cannot be read as an archive (it ends early, or a part of it is damaged); get it"),
        ("images", "images/1.png is no image, or is damaged ("),
        ("nothing", "does not exist; give an IDX file, an .npz file, or a folder or tar archive of images"),
    ):
        said = refusal(prepare, tmp_path / name, "--out", tmp_path / "out", *SIZE)
        assert (
            said.startswith(f"modular-fairseq prepare-pixels: error: {tmp_path / name}") and sentence in said
        )
        assert not (tmp_path / "out/bin").exists() and not (tmp_path / "out/text").exists()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)  # PIL refuses twice as many
    said = refusal(prepare, tmp_path / "glass", "--out", tmp_path / "out", *SIZE)
    assert "glass/1.png is too large for PIL (Image size (12 pixels) exceeds limit of 10 pixels" in said
    said = refusal(prepare, sources / "dark.gz", "--out", tmp_path / "out", *SIZE, "--valid", 40)
    assert "has 40 different pictures, which is too few for --valid 40, --test 4 and 1 for training" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--colours", "1"], "--colours 1: give a number from 2 to 4096"),
        (["--valid", "0"], "--valid 0: give a number of at least 1"),
        (["--seed", "-1"], "--seed -1: give a number from 0 to 4294967295"),
    ],
)
def test_bad_numbers_are_one_sentence(sources, tmp_path, words, sentence):
    assert sentence in refusal(prepare, sources / "dark.gz", "--out", tmp_path / "out", *SIZE, *words)


def test_a_wrong_size_is_told(sources, tmp_path, capsys):
    with pytest.raises(SystemExit):
        prepare(sources / "dark.gz", "--out", tmp_path / "out", "--size", "x")
    said = "argument --size: x is no size; give height and width, as in 14x28\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_file_is_no_folder_for_pictures(sources, tmp_path):
    (tmp_path / "out").touch()
    said = refusal(prepare, sources / "dark.gz", "--out", tmp_path / "out", *SIZE)
    assert f"--out {tmp_path}/out: cannot be made (File exists); give another folder" in said


@pytest.mark.parametrize(
    ("module", "package"), [("sklearn.cluster", "scikit-learn"), ("PIL.Image", "pillow")]
)
def test_a_package_that_is_not_installed_is_named(sources, tmp_path, monkeypatch, module, package):
    (tmp_path / "pictures").mkdir()
    shutil.copy(Path(__file__).parents[2] / "docs/cross-attention.png", tmp_path / "pictures/a.png")
    monkeypatch.setitem(sys.modules, module, None)
    source = tmp_path / "pictures" if package == "pillow" else sources / "dark.gz"
    said = refusal(prepare, source, "--out", tmp_path / "out", *SIZE)
    assert f"needs the package {package}" in said and "pip install 'modular_fairseq[pixels]'" in said


def test_drawing_step_by_step_equals_teacher_forcing(pairs, model):
    """The scores at each pixel are those of one pass over the whole picture, so sampling by them is exact."""
    loaded = load(model, pairs / "bin", "test")
    nothing = torch.empty(3, 0, dtype=torch.int64)
    drawn = draw(loaded.model, nothing, 24, 6, seed=5)
    assert drawn.shape == (3, 24) and drawn.min() >= 0 and drawn.max() < 6
    tokens = torch.cat([torch.full((3, 1), 2), drawn + 4], dim=1)
    with torch.no_grad():
        whole = loaded.model.decoder(tokens[:, :-1])[0]
        state = {}
        steps = [
            loaded.model.decoder(tokens[:, : n + 1], incremental_state=state)[0][:, -1] for n in range(24)
        ]
    assert torch.stack(steps, dim=1) == pytest.approx(whole, abs=1e-5)
    generator = torch.Generator().manual_seed(5)
    naive = [whole[:, n, 4:10].softmax(1).multinomial(1, generator=generator)[:, 0] for n in range(24)]
    assert torch.equal(torch.stack(naive, dim=1), drawn)


def test_a_model_with_an_adaptive_softmax_draws_by_its_probabilities():
    """Its output are features, which say nothing about a colour by themselves."""
    model = build("modular_transformer_lm", types=40, adaptive_softmax_cutoff="20,30").eval()
    nothing = torch.empty(2, 0, dtype=torch.int64)
    drawn = draw(model, nothing, 12, 40, seed=5, top=1)
    tokens = torch.cat([torch.full((2, 1), 2), drawn + 4], dim=1)
    with torch.no_grad():
        probabilities = model.get_normalized_probs(model.decoder(tokens[:, :-1]), log_probs=False)
    assert torch.equal(probabilities[..., 4:44].argmax(2), drawn)


def test_given_pixels_are_kept_and_seeds_and_temperatures_matter(pairs, model):
    loaded = load(model, pairs / "bin", "test")
    given = torch.tensor([[1, 2, 3, 4, 5, 0, 1]])
    first, second = (draw(loaded.model, given, 24, 6, seed=seed) for seed in (1, 2))
    assert torch.equal(first[:, :7], given) and torch.equal(second[:, :7], given)
    assert not torch.equal(first, second)
    cold = [draw(loaded.model, given, 24, 6, seed=seed, temperature=1e-4) for seed in (1, 2)]
    cold.append(draw(loaded.model, given, 24, 6, seed=1, temperature=1e-320))  # in float32 this is 0
    top = draw(loaded.model, given, 24, 6, seed=3, top=1)
    assert all(torch.equal(each, top) for each in cold)  # the likeliest colours


def run_draw(pairs, model, out, *words):
    subset = ["--gen-subset", "test"] if "--given" in words else []
    cli.main(["draw", *map(str, (pairs / "bin", "--path", model, "--out", out, *subset, *words))])


def test_drawn_pictures_are_a_png_grid(pairs, model, tmp_path):
    run_draw(pairs, model, tmp_path / "drawn.png", "--count", 5, "--zoom", 2)
    with Image.open(tmp_path / "drawn.png") as image:
        assert image.size == (2 * (3 * 6 + 2 * 2), 2 * (2 * 4 + 2))
    run_draw(pairs, model, tmp_path / "completed.png", "--count", 2, "--given", 0.5, "--zoom", 1)
    with Image.open(tmp_path / "completed.png") as image:
        found = np.asarray(image)
    about = shape.read(pairs / "bin")
    real = about.pictures(numbers(pairs / "text/test.txt")[:2])
    assert (found[:4, 16:22] == real[0]).all() and (found[6:10, 16:22] == real[1]).all()
    assert (found[:2, :6] == real[0, :2]).all() and (found[2:4, :6] == 160).all()
    assert (found[:2, 8:14] == real[0, :2]).all()


def test_the_seed_the_temperature_and_the_likeliest_colours_decide_the_pictures(pairs, model, tmp_path):
    files = {}
    for words in ((), ("--top", 1), ("--temperature", 1e-4)):
        for seed in (1, 2):
            run_draw(pairs, model, tmp_path / "drawn.png", "--count", 2, "--seed", seed, *words)
            files[(*words, seed)] = (tmp_path / "drawn.png").read_bytes()
    assert files[1,] != files[2,]
    likeliest = files["--top", 1, 1]
    assert all(found == likeliest for words, found in files.items() if len(words) == 3)


def test_what_cannot_be_drawn_is_one_sentence(pairs, model, tmp_path):
    out = tmp_path / "x.png"
    for words, sentence in (
        (["--given", "1"], "--given 1.0: give a share between 0 and 1, or leave it out"),
        (["--given", ".1"], "--given 0.1: 0 of the 4 rows of a picture would be given"),
        (["--given", ".9"], "--given 0.9: 4 of the 4 rows of a picture would be given"),
        (["--temperature", "0"], "--temperature 0.0: give a number above 0"),
        (["--count", "0"], "--count 0: give a number of at least 1"),
        (["--count", "9", "--given", ".5"], "--count 9: test has 4 pictures; give a smaller number"),
        (
            ["--gen-subset", "test"],
            "--gen-subset has no effect without --given, which completes",
        ),
        (["--top", "0"], "--top 0: give a number of at least 1"),
        (["--seed", "-1"], "--seed -1: give a number from 0"),
    ):
        assert sentence in refusal(run_draw, pairs, model, out, *words)
    assert "give a name that ends with .png" in refusal(run_draw, pairs, model, tmp_path / "x.jpg")
    assert "is no folder; give a file in one that exists" in refusal(
        run_draw, pairs, model, tmp_path / "no/x.png"
    )
    assert not out.exists()


def test_a_grid_has_gaps_and_fills_short_rows():
    black = np.zeros((2, 3, 3), np.uint8)
    found = grid([[black, black], [black]], zoom=1)
    assert found.shape == (6, 8, 3)
    assert not found[:2, :3].any() and (found[:, 3:5] == 255).all() and (found[4:, 5:] == 255).all()


def test_eta_squared_is_the_share_of_the_variance_between_regions(pairs, model):
    """The analysis is compared with single passes over single pictures."""
    report = analyze(model, pairs / "bin", "test", ["pictures"])["pictures"]
    loaded = load(model, pairs / "bin", "test")
    pictures = numbers(pairs / "text/test.txt")
    layer = loaded.model.decoder.layers[1]
    values = []
    hook = layer.competition.register_forward_hook(lambda module, inputs, output: values.append(output))
    for picture in torch.tensor(pictures):
        with torch.no_grad():
            loaded.model(torch.cat([torch.tensor([2]), picture + 4])[None])
    hook.remove()
    c = torch.stack([each[:-1, 0] for each in values]).double().numpy()  # pictures x pixels x mechanisms
    left = np.tile([True] * 3 + [False] * 3, 4)
    mean = c.mean((0, 1))
    between = sum(c[:, side].shape[1] * 4 * (c[:, side].mean((0, 1)) - mean) ** 2 for side in (left, ~left))
    found = report.layers[1]
    assert found.eta_squared == pytest.approx(between.sum() / ((c - mean) ** 2).sum(), rel=1e-6)
    assert found.regions["left"] == pytest.approx(c[:, left].mean((0, 1)), rel=1e-6)
    assert np.array(found.mean) == pytest.approx(c.mean(0).T, rel=1e-6)
    assert report.count == 4 and sorted(report.pictures) == sorted(pictures.tolist())
    first = pictures.tolist().index(report.pictures[0])
    assert np.array(found.single[0]) == pytest.approx(c[first].T, rel=1e-5)
    bright = np.array(shape.read(pairs / "bin").brightness())[pictures]
    means = bright[:, left].mean(), bright[:, ~left].mean()
    assert report.brightness == pytest.approx(np.var(means) / bright.var(), rel=1e-9)
    assert f"eta squared of the brightness: {report.brightness:.3f}" in report.text()
    assert len(report.tables()["pictures"]) == 2


def test_a_training_that_keeps_checkpoints_has_eta_squared_of_each(pairs, tmp_path):
    words = [*SMALL.split(), "--save-interval-updates", "5"]
    run_train(pairs / "bin", *words, "--save-dir", tmp_path, common=())
    run = Run("run", str(tmp_path), Corpus(str(pairs / "bin")), words, 1)
    found = CompetitionInPictures().measure(Measurement(run), lambda line: None)
    expected = {"eta_squared_by_update": [], "eta_squared_heads_by_update": []}
    for update in (5, 10):
        (path,) = tmp_path.glob(f"checkpoint_*_{update}.pt")
        report = analyze(str(path), pairs / "bin", "test", ["pictures"])["pictures"]
        expected["eta_squared_by_update"].append([update, report.layers[-1].eta_squared])
        of_heads = max(each["eta_squared"] for each in report.heads)
        expected["eta_squared_heads_by_update"].append([update, of_heads])
    assert {name: found[name] for name in expected} == expected
    assert len({value for _, value in found["eta_squared_by_update"]} | {found["eta_squared"]}) == 3


def test_eta_squared_of_heads_is_of_their_shares_in_what_the_attention_writes(pairs, model):
    report = analyze(model, pairs / "bin", "test", ["pictures"])["pictures"]
    loaded = load(model, pairs / "bin", "test")
    attention, values = loaded.model.decoder.layers[1].self_attn, []
    attention.out_proj.register_forward_hook(lambda module, inputs, output: values.append(inputs[0]))
    for picture in torch.tensor(numbers(pairs / "text/test.txt")):
        with torch.no_grad():
            loaded.model(torch.cat([torch.tensor([2]), picture + 4])[None])
    norms = [each[:-1, 0].view(24, 2, 8).double().square().sum(2).sqrt() for each in values]
    shares = torch.stack([each / each.sum(1, keepdim=True) for each in norms]).numpy()
    left = np.arange(24) % 6 < 3
    share = shares[..., 0]  # of two heads, the other one has the same
    between = sum((share[:, side].mean() - share.mean()) ** 2 * side.mean() for side in (left, ~left))
    expected = between / share.var()
    [_, last] = report.heads
    assert last["module"] == "decoder.layers.1.self_attn" and last["layer"] == 2
    assert last["eta_squared"] == pytest.approx(expected, rel=1e-6)


def test_the_best_division_of_heads_is_that_of_all_divisions():
    generator = torch.Generator().manual_seed(3)
    shares = torch.rand(5, 12, 4, generator=generator).double()
    shares[:, :6, 1] += 0.5
    shares[:, :6, 2] += 0.3
    shares /= shares.sum(2, keepdim=True)
    region = torch.tensor([0] * 6 + [1] * 4 + [-1] * 2)
    sums = BetweenRegions(region)
    sums.add(shares[:2])
    sums.add(shares[2:])
    found = {}
    for number in range(1, 15):
        group = [head for head in range(4) if number >> head & 1]
        values = shares[..., group].sum(2)[:, :10]
        sides = values[:, :6], values[:, 6:]
        between = sum(((side.mean() - values.mean()) ** 2 * side.numel()) for side in sides)
        found[tuple(group)] = float(between / ((values - values.mean()) ** 2).sum())
    best = max(found, key=found.get)
    assert sums.best_division() == pytest.approx(found[best])
    assert BetweenRegions(torch.full((12,), -1)).best_division() is None


@pytest.mark.parametrize("arch", ["modular_transformer_lm_pixels", "transformer_lm"])
def test_a_model_without_mechanisms_has_the_control_of_its_heads(pairs, tmp_path, capsys, arch):
    words = SMALL.replace("--tim-layers all ", "").replace("tim_transformer_lm_pixels", arch)
    run_train(pairs / "bin", *words.split(), "--save-dir", tmp_path / "plain", common=())
    path = ["--path", str(tmp_path / "plain/checkpoint_last.pt"), "--out", str(tmp_path / "found")]
    cli.main(["analyze", "pictures", str(pairs / "bin"), *path])
    found = json.loads((tmp_path / "found/analysis.json").read_text())["analyses"]["pictures"]
    assert found["layers"] == [] and len(found["heads"]) == 2
    assert all(0 <= each["eta_squared"] <= 1 for each in found["heads"])
    printed = capsys.readouterr().out
    assert all(f"{each['eta_squared']:.3f}" in printed for each in found["heads"])
    pytest.importorskip("matplotlib")
    report = ["report", str(tmp_path / "found"), "--out", str(tmp_path / "r.html")]
    cli.main([*report, "--pictures", str(tmp_path / "figures")])
    assert not list((tmp_path / "figures").glob("*activations*"))


def test_data_without_pictures_have_no_such_analysis(pairs, model, tmp_path, capsys):
    for name in ("dict.txt", "test.bin", "test.idx"):
        (tmp_path / name).write_bytes((pairs / "bin" / name).read_bytes())
    words = (tmp_path, "--path", model, "--gen-subset", "test")
    said = refusal(lambda *each: cli.main(["analyze", "pictures", *map(str, each)]), *words)
    assert "the data has no pictures; prepare them by modular-fairseq prepare-pixels" in said
    cli.main(["analyze", "all", *map(str, words)])
    assert "PICTURES" not in capsys.readouterr().out
    cli.main(["analyze", "all", str(pairs / "bin"), *map(str, words[1:]), "--out", str(tmp_path / "found")])
    assert "PICTURES" in capsys.readouterr().out
    found = json.loads((tmp_path / "found/analysis.json").read_text())
    assert found["analyses"]["pictures"]["count"] == 4


def test_the_report_shows_pictures_and_their_maps(pairs, model, tmp_path):
    out = tmp_path / "found"
    words = ("pictures", pairs / "bin", "--path", model, "--gen-subset", "test", "--out", out)
    cli.main(["analyze", *map(str, words)])
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    cli.main(["report", str(out), "--out", str(page), "--pictures", str(figures), "--format", "png"])
    assert '"palette"' in page.read_text()
    [path] = figures.glob("*-activations.png")
    with Image.open(path) as image:
        assert min(image.size) > 50


def test_toy_pictures_are_dark_strokes_and_bright_textures(tmp_path):
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        sizes = ["--train", "20", "--valid", "5", "--test", "5", "--seed", str(seed), "--pictures"]
        cli.main(["toy-corpus", str(tmp_path / name), *sizes])
    strokes, textures = (read(tmp_path / "one" / name, 16, 16, 1) for name in ("strokes.idx", "textures.npz"))
    assert len(strokes.pictures) == len(textures.pictures) == 30 and not len(strokes.test)
    assert np.median(strokes.pictures) == 0 and (strokes.pictures.max((1, 2, 3)) > 200).all()
    assert 60 < np.median(textures.pictures) < 200
    first, same, other = ((tmp_path / name / "strokes.idx").read_bytes() for name in ("one", "same", "other"))
    assert first == same != other
