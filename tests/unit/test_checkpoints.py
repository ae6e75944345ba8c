"""Test that checkpoints are data: files that fairseq saves load, and all others are refused before they run
code.
"""

import copy
import errno
import io
import os
import pickle
import resource
import signal
import zipfile
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from numpy._core.multiarray import _reconstruct, scalar
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.nodes import AnyNode

from modular_fairseq.training.checkpoints import load_checkpoint, save_checkpoint, weights_digest
from modular_fairseq_cli.errors import UsageError, find_usage_error
from tests.hostile_checkpoints import FORMATS, Pickled, checkpoint, full_disk, refusal

# ---- hostile files ----


def forged_array(code, dtype_state, data=b"A" * 8, shape=(1,)):
    return Pickled(
        _reconstruct,
        (np.ndarray, (0,), b"b"),
        (1, shape, Pickled(np.dtype, (code, False, True), dtype_state), False, data),
    )


# It says "my eight bytes are a pointer to a Python object".
POINTERS = (
    3,
    "<",
    None,
    ("a",),
    {"a": (np.dtype("O"), 0)},
    8,
    1,
    0,
)
NUMBERS = (3, "<", None, None, None, -1, -1, 0)


def test_numpy_itself_believes_a_forged_data_type():
    array = pickle.loads(pickle.dumps(forged_array("i8", POINTERS)))
    # Reading array["a"] would follow the pointer 0x4141414141414141.
    assert array.dtype["a"].kind == "O" and array.nbytes == 8


@pytest.mark.parametrize(
    "value",
    [
        forged_array("i8", POINTERS),
        forged_array("V8", POINTERS),
        forged_array("i8", (3, "<", None, None, None, -1, -1, 63)),
        forged_array("i8", NUMBERS, data=b"A" * 7),
        forged_array("i8", NUMBERS, shape=(2,)),
        forged_array("O", (3, "|", None, None, None, -1, -1, 63), data=[None]),
        Pickled(_reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), "O", False, b"A" * 8)),
        Pickled(scalar, (Pickled(np.dtype, ("V8", False, True), POINTERS), b"A" * 8)),
        Pickled(scalar, (Pickled(np.dtype, ("i8", False, True), NUMBERS), b"A" * 4)),
        Pickled(np.ndarray, ((1,), "O")),
        np.array(["a string"]),
        np.zeros(2, dtype=[("a", "f4")]),
        Pickled(DictConfig, ({"a": 1},)),
        Pickled(ListConfig, ([1],)),
        Pickled(AnyNode, (1,)),
        Pickled(Namespace, ()),
        Pickled(defaultdict, (list,)),
        Pickled(defaultdict, (os.getcwd,)),
        Path("a"),
    ],
)
@FORMATS
def test_only_what_pickle_writes_for_plain_data_is_accepted(tmp_path, value, zipped):
    path = tmp_path / "forged.pt"
    torch.save(checkpoint(extra_state={"value": value}), path, _use_new_zipfile_serialization=zipped)
    assert "refused" in refusal(path)


# ---- ordinary files ----


@FORMATS
def test_options_are_a_namespace_as_they_were(tmp_path, zipped):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(), path, _use_new_zipfile_serialization=zipped)
    state = load_checkpoint(path)
    assert type(state["cfg"]["model"]) is Namespace and state["cfg"]["model"] == checkpoint()["cfg"]["model"]
    assert state["model"]["weight"].equal(checkpoint()["model"]["weight"].cpu())


NUMPY_VALUES = {
    **{
        str(np.dtype(code)): np.array([[0, 1, 2], [3, 4, 100]]).astype(code)
        for code in ("?", "i4", "<i8", ">i8", "u1", "f2", "f4", "f8")
    },
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "no axes": np.array(2.5),
    "float64 scalar": np.float64(27.25),
    "int64 scalar": np.int64(-3),
    "bool scalar": np.bool_(True),
}


@pytest.mark.parametrize("numpy_module", ["numpy._core", "numpy.core"], ids=["numpy 2", "numpy 1"])
def test_numpy_numbers_load_and_save_as_they_were(tmp_path, numpy_module):
    path, again = tmp_path / "checkpoint.pt", tmp_path / "again.pt"
    buffer = io.BytesIO()
    torch.save(checkpoint(extra_state=NUMPY_VALUES), buffer, _use_new_zipfile_serialization=False)
    ours = np._core.__name__ + ".multiarray"
    path.write_bytes(buffer.getvalue().replace(ours.encode(), f"{numpy_module}.multiarray".encode()))

    state = load_checkpoint(path)
    save_checkpoint(state, again)
    for values in (state["extra_state"], load_checkpoint(again)["extra_state"]):
        for name, value in NUMPY_VALUES.items():
            assert np.array_equal(values[name], value), name
            # numpy itself swaps bytes when it loads.
            assert values[name].dtype == value.dtype.newbyteorder("="), name
            assert isinstance(values[name], type(value)), name
    assert b"modular_fairseq" not in again.read_bytes()


def test_sums_of_bleu_go_on_counting_after_a_resume(tmp_path):
    from fairseq.logging.meters import AverageMeter

    meter = AverageMeter()
    meter.update(np.array([3, 1, 0, 0]))
    torch.save(checkpoint(extra_state={"meter": meter.state_dict()}), tmp_path / "checkpoint.pt")
    resumed = AverageMeter()
    resumed.load_state_dict(load_checkpoint(tmp_path / "checkpoint.pt")["extra_state"]["meter"])
    resumed.update(np.array([1, 1, 1, 1]))
    assert resumed.sum.tolist() == [4, 2, 1, 1] and resumed.count == 2


# ---- damaged files, and files of another kind ----


@FORMATS
@pytest.mark.parametrize("kept", [0, 1, 3, 40, 0.3, 0.5, 0.9, -22, -1])
def test_a_file_cut_short_is_refused(tmp_path, kept, zipped):
    path = tmp_path / "short.pt"
    torch.save(checkpoint(model={"weight": torch.zeros(5000)}), path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    assert "cut short" in refusal(path)


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "notes.pt").write_text("hello world\n" * 100)
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "plain.pt")
    assert "is no checkpoint" in refusal(tmp_path / "notes.pt")
    assert 'no "model"' in refusal(tmp_path / "list.pt")
    assert 'no "model"' in refusal(tmp_path / "plain.pt")
    assert "No such file" in refusal(tmp_path / "missing.pt")
    assert "Is a directory" in refusal(tmp_path)


# ---- fairseq's own commands ----


@pytest.mark.parametrize("load", [checkpoint_utils.load_checkpoint_to_cpu, load_checkpoint])
@pytest.mark.parametrize("how", ["compressed", "with shared bytes"])
def test_content_that_is_larger_than_its_file_is_refused(load, how, tmp_path):
    model = {"weight": torch.zeros(10_000)}
    state = {"model": model, "optimizer_history": HISTORY, "extra_state": {"epoch": 1}}
    torch.save(state, tmp_path / "whole.pt")
    load(str(tmp_path / "whole.pt"))
    bomb = str(tmp_path / "bomb.pt")
    kind = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(bomb, "w", kind) as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
        if how == "with shared bytes":
            storage = max(archive.infolist(), key=lambda each: each.file_size)
            archive.filelist += [copy.copy(storage)] * 3
    with pytest.raises(UsageError, match=r"bomb\.pt is no checkpoint .* bytes unpack to [\d,]+;"):
        load(bomb)


def test_an_uncaught_refusal_of_torch_load_is_a_usage_error(tmp_path):
    hostile, short = tmp_path / "hostile.pt", tmp_path / "short.pt"
    torch.save(checkpoint(args=Namespace(x=Pickled(os.getpid, ()))), hostile)
    short.write_bytes(hostile.read_bytes()[:500])
    for path, reason in ((hostile, "posix.getpid"), (short, "cut short")):
        with pytest.raises(Exception) as caught:
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
        assert str(path) in str(find_usage_error(caught.value)) and reason in str(
            find_usage_error(caught.value)
        )
        wrapped, news = Exception("in fairseq's words"), KeyError("something else that went wrong meanwhile")
        wrapped.__context__ = news.__context__ = caught.value
        assert str(find_usage_error(wrapped)) == str(find_usage_error(caught.value))
        assert find_usage_error(news) is None


HISTORY = [{"num_updates": 1, "lr_scheduler_state": {}}]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ([1, 2], 'has no "model"'),
        (torch.zeros(3), 'has no "model"'),
        ({"optimizer_history": HISTORY, "extra_state": {"epoch": 1}}, 'has no "model"'),
        ({"model": {}, "optimizer_history": HISTORY}, "has no extra_state;"),
        ({"model": {}, "extra_state": {"epoch": 1}}, "has no optimizer_history;"),
        ({"model": {}}, "has no extra_state and no optimizer_history;"),
    ],
)
def test_a_checkpoint_without_a_part_is_named_with_the_part(state, reason, tmp_path):
    torch.save(state, tmp_path / "part.pt")
    with pytest.raises(UsageError, match=reason) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "part.pt"))
    assert str(caught.value).startswith(f"{tmp_path}/part.pt is not a ")


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (None, "NoneType"),
        ([1.0], "list"),
        (torch.ones(2, dtype=torch.complex64), "complex64, strided"),
        (torch.ones(2).to_sparse(), "float32, sparse_coo"),
    ],
)
@pytest.mark.parametrize("load", [checkpoint_utils.load_checkpoint_to_cpu, load_checkpoint])
def test_a_weight_that_is_no_dense_tensor_of_real_numbers_is_refused(load, weight, found, tmp_path):
    weights = {"a": torch.ones(2), "b._extra_state": None, "c": weight}
    path = str(tmp_path / "weight.pt")
    torch.save({"model": weights, "optimizer_history": HISTORY, "extra_state": {"epoch": 1}}, path)
    with pytest.raises(UsageError, match=f"its weight c is no .*real numbers \\({found}\\)"):
        load(path)
    del weights["c"]
    torch.save({"model": weights, "optimizer_history": HISTORY, "extra_state": {"epoch": 1}}, path)
    assert load(path)["model"].keys() == weights.keys()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_that_torch_load_opens_itself_is_named_too(tmp_path, kind):
    torch.save(Path("a"), tmp_path / "a.pt")
    with pytest.raises(pickle.UnpicklingError) as caught:
        torch.load(kind(tmp_path / "a.pt"))
    assert str(find_usage_error(caught.value)).startswith(f"{tmp_path}/a.pt is refused")


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (MemoryError(), ""),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 128 bytes."),
            "128 bytes",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), "2.50 GiB"),
    ],
)
def test_a_lack_of_memory_is_a_usage_error(error, more):
    found = find_usage_error(error)
    assert str(found) == (
        f"there is not enough memory{f' for {more} more' if more else ''}; give smaller batches "
        "(--max-tokens, --batch-size), or a smaller model"
    )
    assert find_usage_error(RuntimeError("shapes do not fit")) is None


def test_other_errors_are_not_usage_errors():
    with pytest.raises(pickle.UnpicklingError) as caught:
        pickle.loads(b"not a pickle")
    assert find_usage_error(caught.value) is None
    assert find_usage_error(KeyboardInterrupt()) is None


# ---- what several processes send each other when training resumes ----


def test_what_fairseq_broadcasts_loads(tmp_path):
    torch.save(checkpoint(extra_state=NUMPY_VALUES), tmp_path / "checkpoint.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint.pt"))
    assert isinstance(state["cfg"], DictConfig)
    tensors, sent = [], io.BytesIO()
    torch.save(distributed_utils._split_tensors_from_obj(state, tensors), sent)

    received = distributed_utils._put_tensors_in_obj(
        torch.load(io.BytesIO(sent.getvalue()), map_location="cpu"), tensors
    )
    assert type(received["cfg"]) is DictConfig and received["cfg"] == state["cfg"]
    assert type(received["cfg"].optimization.lr) is ListConfig and received["cfg"].optimization.lr == [
        0.1,
        0.05,
    ]
    assert received["cfg"].task._get_full_key("data") == "task.data"  # the node knows its parent
    assert type(received["cfg"].model) is Namespace and received["cfg"].model == state["cfg"].model
    assert received["model"]["weight"] is state["model"]["weight"]
    OmegaConf.set_struct(received["cfg"], False)
    received["cfg"].optimization.lr[0] = 0.2
    assert received["cfg"].optimization.lr == [0.2, 0.05] and state["cfg"].optimization.lr == [0.1, 0.05]

    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError):
            torch.load(io.BytesIO(sent.getvalue()), map_location="cpu")
    finally:
        torch.serialization.add_safe_globals(allowed)


# ---- writing ----


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(checkpoint(), path)
    old = path.read_bytes()

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(UsageError, match=rf"{path} was not written \(No space left on device\)"):
        save_checkpoint(checkpoint(), path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize("numbers", [7000, 100_000])
def test_a_write_that_the_system_stops_leaves_the_old_file_and_nothing_else(tmp_path, numbers):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(checkpoint(), path)
    old = path.read_bytes()
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        with pytest.raises(UsageError, match=r"was not written \(File too large\)"):
            save_checkpoint(checkpoint(model={"weight": torch.zeros(numbers)}), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["checkpoint.pt"]


def test_a_link_to_a_checkpoint_stays_a_link(tmp_path):
    (tmp_path / "link.pt").symlink_to(tmp_path / "file.pt")
    save_checkpoint(checkpoint(), tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink() and "model" in load_checkpoint(tmp_path / "file.pt")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "there is not enough memory;"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "there is not enough memory;"),
        (OSError(errno.EIO, "Input/output error"), r".*x.pt could not be read \(Input/output error\);"),
    ],
)
def test_a_checkpoint_is_not_blamed_for_the_memory_or_the_disk(error, said, tmp_path, monkeypatch):
    def load(*args, **kwargs):
        raise error

    (tmp_path / "x.pt").touch()
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(UsageError, match=f"^{said}"):
        load_checkpoint(tmp_path / "x.pt")


def test_the_digest_of_weights_is_of_their_names_and_values_alone(tmp_path):
    def digest_of(weights, **others):
        torch.save({"model": weights, **others}, tmp_path / "model.pt")
        return weights_digest(tmp_path / "model.pt")

    a, b = torch.arange(6.0).view(2, 3), torch.ones(2)
    first = digest_of({"a": a, "b": b})
    assert len(first) == 16
    assert digest_of({"b": b, "a": a}, extra_state={"time": 7}) == first
    assert digest_of({"a": a.t().contiguous().t(), "b": b}) == first  # another order in memory
    others = [{"a": a + 1, "b": b}, {"c": a, "b": b}, {"a": a}, {"a": b, "b": a}]
    assert len({first, *map(digest_of, others)}) == 5
