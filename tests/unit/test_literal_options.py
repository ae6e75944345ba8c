"""Test that options are data: the strings that fairseq evaluates may not be programs."""

from argparse import Namespace

import fairseq.utils
import pytest
import torch
from fairseq import options
from fairseq.models import fconv
from fairseq.models.transformer import TransformerModel, base_architecture

from modular_fairseq.patches.literals import evaluate_literal
from modular_fairseq_cli.errors import UsageError
from tests.helpers import task


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("20000,60000", (20000, 60000)),
        ("(0.9, 0.98)", (0.9, 0.98)),
        ("[(512, 3)] * 2 + [(1024, 1)]", [(512, 3), (512, 3), (1024, 1)]),
        ("-1e-3", -1e-3),
        ("True", True),
        (" {'beam': 5} ", {"beam": 5}),
        ("'a' 'b'", "ab"),
    ],
)
def test_literals_have_their_value(expression, value):
    assert evaluate_literal(expression) == value == eval(expression.strip())


@pytest.mark.parametrize(
    "expression",
    [
        "print(1)",
        "__import__('os')",
        "os.name",
        "[x for x in (1,)]",
        "lambda: 1",
        "f'{1}'",
        "a",
        "[1] * a",
        "[0] * 99999999999999999999",
        "100001 * 'a'",
        "(0, 1) * 40000 * 2",
        "(",
        "",
        "1; 2",
    ],
)
def test_anything_else_is_refused_by_a_sentence_that_quotes_it(expression):
    with pytest.raises(UsageError) as caught:
        evaluate_literal(expression)
    assert repr(expression) in str(caught.value)


def test_what_is_not_a_string_is_a_type_error_as_fairseq_expects():
    with pytest.raises(TypeError):
        evaluate_literal(True)
    assert fairseq.utils.eval_bool(True, default="the default") == "the default"


def test_fairseq_reads_its_options_as_before():
    assert options.eval_str_list("0.1,0.2") == [0.1, 0.2]
    assert options.eval_str_list("3", type=int) == [3]
    assert options.eval_bool("False") is False
    assert fconv.eval("[(512, 3)] * 2") == [(512, 3), (512, 3)]


def test_the_options_of_a_checkpoint_cannot_run_a_program(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    args = Namespace(
        encoder_layers=1,
        decoder_layers=1,
        encoder_embed_dim=8,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    args.adaptive_softmax_cutoff = f"open({str(marker)!r}, 'w') and [10]"
    base_architecture(args)
    torch.save(vars(args), tmp_path / "checkpoint.pt")
    # The option is an ordinary string.
    read = Namespace(**torch.load(tmp_path / "checkpoint.pt", weights_only=True))

    with pytest.raises(UsageError):
        TransformerModel.build_model(read, task())
    assert not marker.exists()

    monkeypatch.delattr(fairseq.utils, "eval")  # without the patch, fairseq evaluates the string
    TransformerModel.build_model(read, task())
    assert marker.exists()


@pytest.mark.parametrize("text", ["\\", "(", "x y", "x"])
def test_a_list_of_numbers_that_cannot_be_read_is_refused_as_argparse_refuses_values(text, capsys):
    with pytest.raises(SystemExit) as ended:
        options.get_training_parser().parse_args(["data", "--lr", text])
    said = f"error: argument --lr: {text!r} is no number and no list of numbers\n"
    assert ended.value.code == 2 and capsys.readouterr().err.endswith(said)
    assert options.get_training_parser().parse_args(["--lr", "0.1,0.2"]).lr == [0.1, 0.2]
