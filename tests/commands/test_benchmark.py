"""Tests of `modular-fairseq bench`; none of them asserts a time.

They check which stock model is compared, what is timed, the ratios and refusals, and the table with its JSON.
"""

import argparse
import io
import json
import warnings
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest
import torch

from modular_fairseq.benchmark import command as benchmark
from modular_fairseq.benchmark import jobs, timing
from modular_fairseq.benchmark.comparison import (
    BCD,
    F_STEP,
    G_STEP,
    LAYERS,
    SEARCH,
    STOCK,
    TRAINING,
    evaluate,
    format_comparison,
)
from modular_fairseq.benchmark.counts import A_STEP
from modular_fairseq.models.architectures import PEERS
from modular_fairseq.models.options import nested_config
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError

SIZE = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32"
PLAIN = f"modular_transformer_tiny_cpu {SIZE}"
MAE = f"mae_transformer_tiny_cpu {SIZE}"
NEUTRAL = f"{MAE} --mae-gate-init zero --mae-gate-context source --mae-gate-interval 1"
FOUR_HEADS = f"{PLAIN} --encoder-attention-heads 4 --decoder-attention-heads 4"
TIM = f"modular_transformer_tiny_cpu {SIZE} --tim-layers all"
STREAMS = "multistream_transformer_tiny_cpu --encoder-embed-dim 32 --encoder-ffn-embed-dim 32"
# Only its width and its number of heads differ from stock's.
MATCHED = "tim_transformer_iwslt_de_en --encoder-ffn-embed-dim 36 --encoder-layers 4 --decoder-layers 4"
SIZES = "--sentences 3 --length 8 --search-sentences 3 --beam 2 --steps 5 --target-types 30"
SMALL = f"{SIZES} --source-types 40"
LM = "modular_transformer_lm_tiny_cpu --decoder-layers 1 --decoder-embed-dim 32 --decoder-ffn-embed-dim 32"
MAE_LM = LM.replace("modular", "mae")


@pytest.fixture(autouse=True)
def process_as_before():
    """Restore the threads and warnings of this process, which the command sets."""
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)


def arguments(*args: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    return parser.parse_args([*(SIZES if "language_modeling" in args else SMALL).split(), *args])


def completed(*args: str) -> argparse.Namespace:
    args = arguments(*args)
    benchmark.complete_arguments(args)
    return args


def parse(*models: str, options=()) -> dict:
    args = completed(*models, *options)
    task = jobs.random_task(args.source_types, args.target_types, args.task)
    return {model: benchmark.parse_model(model, task, args) for model in models}


def times(training=(2.0, 2.0), search=(1.0, 1.0), **others) -> dict:
    """Return the times of one round: two copies of stock, and models that do one kind of work each."""
    stock = {
        (copy, work): [t]
        for work, both in ((TRAINING, training), (SEARCH, search))
        for copy, t in zip(STOCK, both, strict=True)
    }
    return {**stock, **{("model", work.replace("_", " ")): seconds for work, seconds in others.items()}}


def ratios(comparison) -> dict:
    return {(row.model, row.work): row.ratio for row in comparison.rows}


# Arithmetic


def test_a_ratio_is_the_median_over_rounds_of_the_time_over_the_mean_of_stock_in_that_round():
    seconds = {
        (STOCK[0], TRAINING): [1.0, 2.0, 4.0],
        (STOCK[1], TRAINING): [1.02, 2.0, 3.98],
        (STOCK[0], SEARCH): [1.0, 1.0, 1.0],
        (STOCK[1], SEARCH): [1.0, 1.0, 1.0],
        ("model", TRAINING): [1.01, 4.0, 3.99 * 1.5],
        ("model", SEARCH): [0.5, 0.7, 0.6],
    }
    comparison = evaluate("model", "stock", seconds)
    rows = {(row.model, row.work): row for row in comparison.rows}
    assert rows["model", TRAINING].ratios == pytest.approx([1.0, 2.0, 1.5])
    assert rows["model", TRAINING].ratio == pytest.approx(1.5)
    line = "    training step               4.0000  1.500 [1.000..2.000]"
    assert line in format_comparison(comparison).splitlines()
    assert rows["model", SEARCH].ratio == pytest.approx(0.6)
    assert ratios(comparison)[STOCK[0], TRAINING] == 1.0
    assert comparison.refusals == []


def test_the_bcd_average_is_f_plus_g_over_the_interval_in_each_round():
    seconds = {key: value * 2 for key, value in times().items()}
    seconds |= {("model", F_STEP): [2.2, 2.0], ("model", G_STEP): [1.5, 1.0], ("model", SEARCH): [1.0, 1.0]}
    comparison = evaluate("model", "stock", seconds, interval=5)
    average = next(row for row in comparison.rows if row.work.startswith(BCD))
    assert average.work == "BCD average, interval 5"
    assert average.seconds == pytest.approx([2.5, 2.2])
    assert average.ratios == pytest.approx([1.25, 1.1])
    assert ratios(comparison)["model", G_STEP] == pytest.approx(0.625)  # the ratio to stock's training step


@pytest.mark.parametrize(
    ("copies", "refused"), [((2.0, 2.059), False), ((2.0, 2.062), True), ((2.062, 2.0), True)]
)
def test_ratios_are_refused_when_the_copies_differ_by_more_than_three_percent(copies, refused):
    seconds = times(training=copies, training_step=[2.0], beam_search=[0.9])
    comparison = evaluate("model", "fairseq's Transformer (heads 8)", seconds)
    assert comparison.differences == pytest.approx(
        {TRAINING: abs(copies[0] - copies[1]) / (sum(copies) / 2), SEARCH: 0.0}
    )
    assert (ratios(comparison)["model", TRAINING] is None) == refused
    assert ratios(comparison)["model", SEARCH] == pytest.approx(0.9)  # its own copies agree
    table = format_comparison(comparison)
    if refused:
        assert len(comparison.refusals) == 1
        assert comparison.refusals[0].startswith(
            f"{TRAINING}: no ratio is reported, because the times of two identical copies of fairseq's "
            "Transformer (heads 8) differ by 3.1%, which is more than 3%"
        )
        assert f"\n{comparison.refusals[0]}\n" in table
        assert table.count("  no ratio\n") == 3  # seconds are shown, ratios are not
    else:
        assert comparison.refusals == [] and "no ratio" not in table


def test_one_odd_round_does_not_refuse_the_rest():
    """The copies are compared by medians, as the models are."""
    seconds = {(copy, work): [1.0] * 5 for copy in STOCK for work in (TRAINING, SEARCH)}
    seconds[STOCK[0], SEARCH] = [1.0, 1.0, 2.0, 1.0, 1.01]
    assert evaluate("model", "stock", seconds).refusals == []


def test_every_job_runs_once_a_round_in_another_order_after_one_round_that_does_not_count(
    monkeypatch, capsys
):
    now, done = SimpleNamespace(seconds=0.0), []

    def job(name: str, seconds: float):
        def run() -> None:
            done.append(name)
            now.seconds += seconds + (100 if len(done) <= 4 else 0)  # warming up is slow

        return run

    monkeypatch.setattr(timing, "clock", lambda device: now.seconds)
    jobs = {
        ("model", name): job(name, seconds)
        for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))
    }
    measured = timing.measure(jobs, completed("--rounds", "6"), "title")
    assert {work: seconds for (_, work), seconds in measured.items()} == {
        "a": [1.0] * 6,
        "b": [2.0] * 6,
        "c": [3.0] * 6,
        "d": [4.0] * 6,
    }
    rounds = [tuple(done[i : i + 4]) for i in range(0, len(done), 4)]
    assert len(rounds) == 7 and all(sorted(order) == ["a", "b", "c", "d"] for order in rounds)
    assert len(set(rounds)) > 1
    assert capsys.readouterr().err.splitlines() == [
        "title: warming up",
        *(f"title: round {i} of 6" for i in range(1, 7)),
    ]


# Models, stock and batches


def test_a_models_own_options_come_after_those_of_all_models():
    ((cfg, stock),) = parse(f"{MAE} --dropout 0.2 --mae-gate-context source").values()
    assert stock.model == cfg.model and stock.optimizer == {**cfg.optimizer, "_name": "adam"}
    assert (cfg.model.dropout, cfg.model.mae_gate_context, cfg.model.encoder_embed_dim) == (0.2, "source", 32)
    assert (
        cfg.model.share_decoder_input_output_embed
        and cfg.criterion.label_smoothing == 0.1
        and cfg.optimizer._name == "torch_adam"
    )
    assert (cfg.generation.beam, cfg.generation.min_len, cfg.generation.max_len_b) == (2, 4, 4)


def test_stock_has_fairseqs_criterion_unless_another_is_asked_for():
    ours, other = (
        f"{MAE} --label-smoothing 0.2",
        f"{MAE} --criterion label_smoothed_cross_entropy_with_alignment",
    )
    configs = parse(ours, other)
    assert configs[ours].own.criterion._name == "modular_cross_entropy"
    theirs = configs[ours].stock.criterion
    assert (theirs._name, theirs.label_smoothing, theirs.sentence_avg) == (
        "label_smoothed_cross_entropy",
        0.2,
        False,
    )
    assert "kl_weight" not in theirs
    assert {pair.criterion._name for pair in configs[other]} == {
        "label_smoothed_cross_entropy_with_alignment"
    }


def test_stock_has_the_weights_and_sizes_of_the_plain_model_and_none_of_our_modules():
    args = completed()
    task = jobs.random_task(args.source_types, args.target_types)
    cfg = benchmark.parse_model(MAE, task, args).own
    stock, copy, mae = (jobs.build(model, cfg, task).state_dict() for model in (*STOCK, MAE))
    assert stock.keys() == copy.keys() == {key for key in mae if ".gate." not in key}
    assert all(torch.equal(stock[key], copy[key]) and stock[key].shape == mae[key].shape for key in stock)
    kinds = {type(module).__module__ for module in jobs.build(STOCK[0], cfg, task).modules()}
    assert not any(kind.startswith("modular_fairseq") for kind in kinds)
    assert stock["encoder.embed_tokens.weight"].shape == (40, 32) and stock[
        "decoder.embed_tokens.weight"
    ].shape == (30, 32)


def test_presets_as_large_as_a_narrower_plain_one_are_compared_with_that_one():
    sizes = {"iwslt_de_en": (512, 1024, 4, 6), "wmt_en_de": (512, 2048, 8, 6)}
    translation = [arch for arch in PEERS if "_transformer" in arch and "_lm" not in arch]
    assert len(translation) == 5
    for arch, (own, stock) in parse(*translation).items():
        config, plain = nested_config(stock.model), PEERS[arch]
        assert (
            own.model._name == arch and own.model.tim_layers == "middle" and own.model.encoder_embed_dim > 512
        )
        assert stock.model._name == plain and stock.model.tim_layers == "none"
        for stack in (config.encoder, config.decoder):
            assert (stack.embed_dim, stack.ffn_embed_dim, stack.attention_heads, stack.layers) == sizes[
                plain.split("_", 2)[2]
            ]


def test_options_go_to_a_matched_preset_and_to_the_plain_one_that_it_is_compared_with():
    flags = "--encoder-layers 4 --decoder-layers 4 --encoder-ffn-embed-dim 36 --dropout 0.2"
    ((own, stock),) = parse(f"tim_transformer_iwslt_de_en {flags} --tim-communication-heads 0").values()
    for cfg, width in ((own, 576), (stock, 512)):
        encoder = nested_config(cfg.model).encoder
        assert (encoder.embed_dim, encoder.ffn_embed_dim, encoder.layers) == (width, 36, 4)
        assert cfg.model.dropout == 0.2


@pytest.mark.parametrize(
    ("arch", "layers"),
    [
        ("multistream_transformer_tiny_cpu", 4),
        ("multistream_transformer_2x1", 4),
        (f"{PLAIN} --encoder-layers 5 --streams 3", 5),
    ],
)
def test_stock_has_as_many_layers_as_all_streams_together(arch, layers):
    ((cfg, stock),) = parse(arch).values()
    task = jobs.random_task(40, 30)
    counts = [jobs.count_parameters(model, cfg, task) for model in (STOCK[0], arch)]
    assert (
        stock.model == cfg.model
        and len(jobs.build(STOCK[0], cfg, task).encoder.layers) == layers
        and counts[0] == counts[1]
    )


def test_a_batch_is_padded_as_fairseq_does_and_the_same_for_the_same_seed():
    task = jobs.random_task(40, 30)
    first, second, other = (jobs.random_batch(task, 20, 10, seed) for seed in (1, 1, 2))
    source, target = first["net_input"]["src_tokens"], first["target"]
    assert torch.equal(source, second["net_input"]["src_tokens"]) and not torch.equal(
        source, other["net_input"]["src_tokens"]
    )
    assert source.shape == target.shape == (20, 10)
    lengths = source.ne(1).sum(dim=1)
    assert lengths.min() >= 8 and lengths.max() == 10 and source.eq(1).any() and target.eq(1).any()
    assert (source[:, -1] == 2).all()  # sentences are padded on the left and end with </s>
    assert torch.equal(first["net_input"]["prev_output_tokens"][:, 1:].ne(1), target[:, 1:].ne(1))
    assert source.max() < 40 and target.max() < 30 and first["ntokens"] == target.ne(1).sum()


# Language models

TO_LM = ("--task", "language_modeling")


def test_a_language_model_is_compared_with_fairseqs_of_the_same_weights():
    args = completed(*TO_LM)
    task = jobs.random_task(args.source_types, args.target_types, args.task)
    cfg = benchmark.parse_model(MAE_LM, task, args).own
    stock, copy, mae = (jobs.build(model, cfg, task) for model in (*STOCK, MAE_LM))
    weights, copied, ours = (model.state_dict() for model in (stock, copy, mae))
    assert weights.keys() == copied.keys() == {key for key in ours if ".gate." not in key}
    assert all(torch.equal(weights[key], copied[key]) for key in weights)
    assert not any(type(module).__module__.startswith("modular_fairseq") for module in stock.modules())
    plain = jobs.build(LM, parse(LM, options=TO_LM)[LM].own, task).eval()
    plain.load_state_dict(weights)
    batch = jobs.random_batch(task, 3, 8, 1)
    with torch.no_grad():
        outputs = [model.eval()(**batch["net_input"])[0][batch["target"].ne(1)] for model in (plain, stock)]
    assert torch.allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize("softmax", ["", " --adaptive-softmax-cutoff 10,20"])
def test_stock_language_models_have_the_criterion_of_their_softmax(softmax):
    model = LM + softmax.replace(" --", " --criterion modular_cross_entropy --", 1)
    ((own, stock),) = parse(model, options=TO_LM).values()
    assert own.criterion._name == "modular_cross_entropy"
    assert stock.criterion._name == ("adaptive_loss" if softmax else "label_smoothed_cross_entropy")


def test_stock_translation_models_have_the_criterion_of_their_softmax():
    softmax = "--adaptive-softmax-cutoff 10,20 --label-smoothing 0"
    ((own, stock),) = parse(f"{PLAIN} {softmax}").values()
    assert (own.criterion._name, stock.criterion._name) == ("modular_cross_entropy", "adaptive_loss")


def test_a_model_with_an_adaptive_input_shares_no_embeddings():
    model = "modular_transformer_lm_wiki103 --decoder-layers 1 --adaptive-input-cutoff 10,20"
    ((own, _),) = parse(f"{model} --adaptive-softmax-cutoff 10,20", options=TO_LM).values()
    assert own.model.adaptive_input and not own.model.share_decoder_input_output_embed


def test_a_file_that_cannot_be_written_is_one_sentence(monkeypatch, tmp_path):
    def refuse(*args):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(benchmark, "write_json", refuse)
    monkeypatch.setattr(benchmark, "count_kernels", lambda *args: [])
    monkeypatch.setattr(benchmark, "format_rows", lambda rows: "")
    with pytest.raises(SystemExit, match=r"times.json cannot be written \(Permission denied\); give"):
        cli.main(["bench", "--kernels", "--json", str(tmp_path / "times.json"), PLAIN])


def test_a_batch_of_a_language_model_predicts_the_next_token():
    task = jobs.random_task(None, 30, "language_modeling")
    batch = jobs.random_batch(task, 20, 10, 1)
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    assert source.shape == target.shape == (20, 10) and (source[:, 0] == 2).all()
    assert torch.equal(source[:, 1:][target[:, 1:].ne(1)], target[:, :-1][target[:, 1:].ne(1)])
    assert target.max() < 30 and batch["ntokens"] == target.ne(1).sum()


def test_language_models_are_timed_in_the_works_of_translation_models(tmp_path, monkeypatch, capsys):
    ran = {}

    def measure(jobs, args, title):
        for key, job in jobs.items():
            ran.setdefault(key, []).append(job())
        return dict.fromkeys(jobs, [1.0])

    monkeypatch.setattr(timing, "measure", measure)
    models = [f"{LM} --mae-gating uniform --attention-type mae", MAE_LM]
    cli.main(["bench", *SIZES.split(), *TO_LM, "--layers", *models])
    works = {(model if model in STOCK else "", work) for model, work in ran}
    assert works == {
        *((copy, work) for copy in STOCK for work in (TRAINING, SEARCH, LAYERS)),
        *(("", work) for work in (TRAINING, F_STEP, G_STEP, SEARCH, LAYERS)),
    }
    hypotheses = {key: found for key, found in ran.items() if key[1] == SEARCH}
    assert len(hypotheses) == 4
    for found in hypotheses.values():
        assert all(len(best["tokens"]) == 5 for each in found for best in each[0])


def test_masked_language_models_are_timed_without_a_search(monkeypatch, capsys):
    ran = {}

    def measure(jobs, args, title):
        for key, job in jobs.items():
            ran[key] = job()
        return dict.fromkeys(jobs, [1.0])

    monkeypatch.setattr(timing, "measure", measure)
    size = "--encoder-layers 4 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16"
    size += " --max-positions 12"  # fewer than the default of --steps, which is for searches
    models = [f"modular_roberta_tiny_cpu {size}", f"mae_roberta_tiny_cpu {size}"]
    few = "--sentences 3 --length 8 --target-types 10"  # a beam of 5 would need more types
    cli.main(["bench", "--task", "masked_lm", *few.split(), "--layers", *models])
    works = {(model if model in STOCK else model.split("_")[0], work) for model, work in ran}
    assert works == {
        *((copy, work) for copy in STOCK for work in (TRAINING, LAYERS)),
        *(("modular", work) for work in (TRAINING, LAYERS)),
        *(("mae", work) for work in (F_STEP, G_STEP, LAYERS)),
    }
    assert all(found.shape == (3, 8, 16) for (_, work), found in ran.items() if work == LAYERS)
    shown = capsys.readouterr().out
    assert "--sentences 3" in shown and "--beam" not in shown and "stock's weights" not in shown
    for option in ("--search-sentences", "--beam", "--steps"):
        with pytest.raises(SystemExit, match=f"{option} has no effect with --task masked_lm"):
            cli.main(["bench", "--task", "masked_lm", option, "3"])


# The command


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Run the command on four models, and return what it printed and wrote.

    The jobs run, but their times are invented: only one of the stock copies is slow.
    """
    ran = {}

    def measure(jobs, args, title):
        for key, job in jobs.items():
            ran.setdefault(key, []).append(job())
        return {
            (model, work): [2.0, 2.0] if work != SEARCH else [1.0 if model != STOCK[1] else 1.1] * 2
            for model, work in jobs
        }

    file = tmp_path_factory.mktemp("bench") / "times.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "measure", measure)
        with pytest.raises(SystemExit) as exit:
            cli.main(["bench", *SMALL.split(), "--json", str(file), PLAIN, MAE, NEUTRAL, FOUR_HEADS])
    return SimpleNamespace(ran=ran, json=json.loads(file.read_text()), exit=exit.value.code)


@pytest.fixture(scope="module")
def layers_report(tmp_path_factory):
    """Run the command with --layers on models that cannot take stock's weights, and return what it printed
    and wrote.

    The stock copies differ only in the times of their layers.
    """

    def measure(jobs, args, title):
        for job in jobs.values():
            job()
        return {
            (model, work): [1.0 if (model, work) != (STOCK[1], LAYERS) or "512" in title else 1.1]
            for model, work in jobs
        }

    file = tmp_path_factory.mktemp("bench") / "times.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "measure", measure)
        out = io.StringIO()
        with redirect_stdout(out), pytest.raises(SystemExit) as exit:
            cli.main(["bench", *SMALL.split(), "--layers", "--json", str(file), TIM, MAE, STREAMS, MATCHED])
    return SimpleNamespace(out=out.getvalue(), json=json.loads(file.read_text()), exit=exit.value.code)


def test_layers_are_a_row_of_every_model_if_asked_for(layers_report):
    tim, mae, streams, wide = layers_report.json["comparisons"]
    for model, comparison in ((TIM, tim), (STREAMS, streams)):
        assert [(row["model"], row["work"]) for row in comparison["rows"]] == [
            (side, work) for side in (*STOCK, model) for work in (TRAINING, LAYERS, SEARCH)
        ]
    assert [row["work"] for row in mae["rows"] if row["model"] == MAE] == [
        F_STEP,
        G_STEP,
        f"{BCD}, interval 5",
        LAYERS,
        SEARCH,
    ]
    assert {row["work"]: row["ratio"] for row in wide["rows"] if row["model"] == MATCHED} == {
        TRAINING: 1.0,
        LAYERS: 1.0,
        SEARCH: 1.0,
    }


def test_layers_are_refused_by_themselves(layers_report):
    small, _, _, wide = layers_report.json["comparisons"]
    assert {row["work"] for row in small["rows"] if row["ratio"] is None} == {LAYERS} and len(
        small["refusals"]
    ) == 1
    assert (
        small["differences"] == pytest.approx({TRAINING: 0.0, LAYERS: 0.1 / 1.05, SEARCH: 0.0})
        and wide["refusals"] == []
    )
    assert layers_report.exit.startswith(
        "modular-fairseq bench: error: layers: no ratio is reported, because the times of two identical "
        "copies of fairseq's Transformer (width 32+32"
    )


def test_a_model_of_another_size_than_stock_says_so(layers_report):
    small, _, streams, wide = layers_report.json["comparisons"]
    assert wide["stock"] == "fairseq's Transformer (width 512+512, feed-forward 36+36, heads 4+4, layers 4+4)"
    sizes = wide["other_size"]
    assert (
        sizes.startswith("width 576+576, feed-forward 36+36, heads 6+6, layers 4+4; ")
        and " million parameters, stock " in sizes
    )
    assert f"\n{MATCHED} (its size differs from stock's: {sizes})\n" in layers_report.out
    assert small["other_size"] is streams["other_size"] is None
    assert f"\n{TIM}\n" in layers_report.out and f"\n{STREAMS}\n" in layers_report.out
    assert all(each["equal_hypotheses"] is None for each in (small, streams, wide))


def layers_job(model: str, flags: str = "", sentences: int = 3) -> tuple[torch.nn.Module, jobs.Job]:
    """Return a model, and the job that times its layers."""
    task = jobs.random_task(40, 30)
    ((cfg, _),) = parse(f"{PLAIN if model in STOCK else model} {flags}").values()
    built = []
    with pytest.MonkeyPatch.context() as patch:
        build = jobs.build
        patch.setattr(jobs, "build", lambda *args: built.append(build(*args)) or built[-1])
        job = jobs.layers_job(model, cfg, task, jobs.random_batch(task, sentences, 8, 1))
    return built[0], job


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", [STOCK[0], PLAIN, TIM, STREAMS, MAE])
def test_the_layers_job_gives_all_layers_their_gradients_and_nothing_else(model):
    built, job = layers_job(model)
    first = job()
    assert first.shape == (3, 8, 32)
    assert not torch.equal(first, job())  # dropout is on
    learned = set(gradients(built))
    expected = {
        key for key, p in built.named_parameters() if p.requires_grad and "output_projection" not in key
    }
    assert learned == expected and {"encoder.embed_tokens.vectors", "decoder.embed_tokens.vectors"} < learned
    assert (
        "encoder.streams.1.0.fc1.weight" if model == STREAMS else "encoder.layers.0.fc1.weight"
    ) in learned
    assert not any(".gate." in key for key in learned)  # as in an F step


def test_the_layers_job_does_the_same_work_for_stock_and_plain_layers():
    no_dropout = "--dropout 0 --attention-dropout 0 --activation-dropout 0"
    # One sentence has no padding, at which the two would differ.
    (stock, stock_job), (plain, plain_job) = (
        layers_job(model, no_dropout, sentences=1) for model in (STOCK[0], PLAIN)
    )
    features = stock_job()
    torch.testing.assert_close(plain_job(), features)
    theirs = gradients(stock)
    torch.testing.assert_close(gradients(plain), theirs)
    torch.testing.assert_close(stock_job(), features, rtol=0, atol=0)  # nothing is learned
    torch.testing.assert_close(gradients(stock), theirs)  # nothing accumulates


def test_the_command_fails_with_a_sentence_when_ratios_are_refused(report):
    assert report.exit.startswith(
        "modular-fairseq bench: error: beam search: no ratio is reported, because the times of two identical "
        "copies of fairseq's Transformer ("
    )
    assert report.exit.endswith("; close other programs, or increase --rounds")
    assert report.exit.count("\n") == 0 and report.exit.count("differ by") == 4  # once for each model


def test_the_json_has_settings_versions_times_and_ratios(report):
    assert report.json["threads"] == 1 and report.json["device"]
    assert (
        report.json["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
        and report.json["versions"]["fairseq-fixed"]
    )
    assert "modular_fairseq" in report.json["versions"]
    assert report.json["settings"]["models"] == [PLAIN, MAE, NEUTRAL, FOUR_HEADS]
    assert (report.json["settings"]["length"], report.json["settings"]["beam"]) == (8, 2)
    plain, mae, neutral, four = report.json["comparisons"]
    assert [each["model"] for each in (plain, mae, neutral, four)] == [PLAIN, MAE, NEUTRAL, FOUR_HEADS]
    assert plain["stock"] == "fairseq's Transformer (width 32+32, feed-forward 32+32, heads 8+8, layers 1+1)"
    assert "heads 4+4" in four["stock"]
    stock = [(copy, work, ratio) for copy in STOCK for work, ratio in ((TRAINING, 1.0), (SEARCH, None))]
    assert [(row["model"], row["work"], row["ratio"]) for row in plain["rows"]] == [
        *stock,
        *((PLAIN, work, ratio) for work, ratio in ((TRAINING, 1.0), (SEARCH, None))),
    ]
    for model, comparison, interval, average in ((MAE, mae, 5, 1.2), (NEUTRAL, neutral, 1, 2.0)):
        assert [(row["model"], row["work"], row["ratio"]) for row in comparison["rows"]] == [
            *stock,
            *((model, work, 1.0) for work in (F_STEP, G_STEP)),
            (model, f"{BCD}, interval {interval}", average),
            (model, SEARCH, None),
        ]
    assert [row["seconds"] for row in four["rows"] if row["work"] == SEARCH] == [
        [1.0, 1.0],
        [1.1, 1.1],
        [1.0, 1.0],
    ]
    assert plain["differences"] == pytest.approx({TRAINING: 0.0, SEARCH: 0.1 / 1.05})


def test_plain_attention_and_uniform_gates_give_stocks_hypotheses(report):
    equal = {each["model"]: each["equal_hypotheses"] for each in report.json["comparisons"]}
    assert equal[PLAIN] == equal[NEUTRAL] == equal[FOUR_HEADS] == [6, 6]
    assert equal[MAE][0] < 6  # gates that do not start uniform make another model


def test_jobs_do_what_they_are_called(report):
    for (model, work), results in report.ran.items():
        if work == SEARCH:
            assert [len(hypotheses) for hypotheses in results[0]] == [2, 2, 2]
            tokens = [hypothesis["tokens"] for hypotheses in results[0] for hypothesis in hypotheses]
            assert all(len(t) == 5 and t[-1] == 2 for t in tokens)
        elif work == G_STEP:
            (log,), size, step = results[0]
            assert log["nsentences"] == 3 and size == log["ntokens"] and step.norm > 0
        else:
            assert work == (F_STEP if "mae" in model else TRAINING)
            assert results[0]["loss"] > 0


def test_f_steps_change_no_gate_and_g_steps_nothing_else():
    """This holds at interval 1, too, where in training an F step never comes without a G step."""
    args = completed()
    task = jobs.random_task(args.source_types, args.target_types)
    cfg = benchmark.parse_model(NEUTRAL, task, args).own
    built = []
    with pytest.MonkeyPatch.context() as patch:
        build = jobs.build
        patch.setattr(jobs, "build", lambda *args: built.append(build(*args)) or built[-1])
        timed, interval = jobs.training_jobs(NEUTRAL, cfg, task, jobs.random_batch(task, 3, 8, 1))
    assert interval == 1

    def changed(work: str) -> set[bool]:
        """Return whether the parameters that change belong to gates: {True}, {False} or both."""
        before = {key: p.detach().clone() for key, p in built[0].named_parameters()}
        timed[NEUTRAL, work]()
        return {".gate." in key for key, p in built[0].named_parameters() if not torch.equal(p, before[key])}

    assert changed(F_STEP) == {False}
    assert changed(G_STEP) == {True}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["transformer"],
            "'transformer': a MODEL must begin with an arch that can be timed; use one of dma_transformer, ",
        ),
        ([""], "'': a MODEL must begin with an arch that can be timed"),
        (
            [f"{PLAIN} --encoder-leyers 2"],
            f"'{PLAIN} --encoder-leyers 2': unrecognized arguments: --encoder-leyers 2",
        ),
        ([f"{PLAIN} --dropout much"], "argument --dropout: invalid float value: 'much'"),
        ([f"{PLAIN} --mae-gate-dim 9"], "--mae-gate-dim has no effect without --attention-type mae"),
        ([f"{PLAIN} --encoder-embed-dim 33"], "33 is not a multiple of"),
        (
            ["tim_transformer_iwslt_de_en --encoder-embed-dim 54"],
            "its stock, fairseq's Transformer in the size of modular_transformer_iwslt_de_en, refuses the "
            "same options: embed_dim must be divisible by num_heads",
        ),
        (
            ["tim_transformer_iwslt_de_en --encoder-layers 3"],
            "--encoder-layers 3 has no TIM layer: use at least 4 layers",
        ),
        ([f"{PLAIN} --streams 2"], "--encoder-layers 1 with --streams 2: there must be 2 + 2 x L of them"),
        ([*TO_LM, PLAIN], "an arch that can be timed; use one of mae_transformer_lm, "),
        (
            [*TO_LM, "--source-types", "9"],
            "--source-types has no effect with --task language_modeling; leave",
        ),
        (
            ["--task", "masked_lm", "--source-types", "9"],
            "--source-types has no effect with --task masked_lm; leave it out",
        ),
        ([*TO_LM, "--length", "2000", LM], "or the --tokens-per-sample of a language model"),
        (["--steps", "2000", PLAIN], "--length and --steps must not be larger than the --max-source-pos"),
        (["--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["--length", "1"], "--length must be at least 2, not 1"),
        (["--precisions", "float32,half"], "--precisions has 'half'; use some of float32, fp16, amp, bf16"),
        (["--kernels", "--rounds", "3"], "--rounds has no effect with --kernels; leave one of them out"),
        (["--kernels", "--layers"], "--layers has no effect with --kernels; leave one of them out"),
        (["--beam", "15"], "--beam must be less than half of --target-types 30, not 15"),
        (
            ["--user-dir", "nowhere"],
            "--user-dir nowhere: there is no such folder; give the folder of a plugin, such as "
            "examples/distance",
        ),
        (
            ["--json", "/nowhere/times.json"],
            "--json /nowhere/times.json is a folder, or its folder does not exist",
        ),
    ],
)
def test_bad_input_is_one_sentence(args, sentence):
    with pytest.raises(UsageError) as error:
        benchmark.run(arguments(*args))
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_a_missing_gpu_is_one_sentence():
    with pytest.raises(UsageError, match="--device cuda needs a GPU, but torch finds none; use --device cpu"):
        benchmark.run(arguments("--device", "cuda"))


def test_the_models_that_mechanisms_want_timed_are_the_default(monkeypatch):
    """A model of a plugin counts, too, although the plugin is imported after the arguments are read."""
    seen = []

    def parse_model(model, task, args):
        seen.append(model)
        if len(seen) == len(benchmark.default_models()):
            raise UsageError("enough")

    monkeypatch.setattr(benchmark, "parse_model", parse_model)
    extra = SimpleNamespace(benched=("modular_transformer_tiny_cpu --dropout 0.2",))
    args = arguments("--rounds", "1")
    monkeypatch.setitem(benchmark.MECHANISMS, "extra", extra)
    with pytest.raises(UsageError, match="enough"):
        benchmark.run(args)
    assert set(benchmark.default_models("language_modeling")) == {
        "modular_transformer_lm",
        "mae_transformer_lm",
    }
    assert seen[0] == "modular_transformer_iwslt_de_en" and seen[-1] == extra.benched[0] and len(seen) > 6


# Kernels


@pytest.fixture(scope="module")
def kernels_report(tmp_path_factory):
    """Run the command with --kernels on two models, and return what it printed and wrote."""
    file = tmp_path_factory.mktemp("bench") / "kernels.json"
    out = io.StringIO()
    with redirect_stdout(out):
        sizes = SMALL.replace("--steps 5", "--steps 6").split()
        flags = ["--kernels", "--precisions", "float32,fp16", "--json", str(file)]
        cli.main(["bench", *sizes, *flags, PLAIN, NEUTRAL])
    return SimpleNamespace(out=out.getvalue(), json=json.loads(file.read_text()))


def test_kernels_are_counted_in_every_precision(kernels_report):
    counts = kernels_report.json["counts"]
    models = [f"{model}{flag}" for flag in ("", " --fp16") for model in (PLAIN, NEUTRAL)]
    assert [rows[-1]["model"] for rows in counts] == models
    for rows in counts:
        works = [F_STEP, G_STEP] if "mae" in rows[-1]["model"] else [TRAINING]
        assert [row["work"] for row in rows] == [TRAINING, A_STEP, *works, A_STEP]
        for row in rows:
            by_phase = {phase: sum(calls.values()) for phase, calls in row["operations"].items()}
            assert sum(by_phase.values()) == row["kernels"] > 0 and row["launches"] is None
            assert all(by_phase.values()) or row["work"] == A_STEP
        assert rows[0]["operations"] == counts[0][0]["operations"] or "--fp16" in rows[-1]["model"]


def test_the_table_of_kernels_has_ratios_to_stock(kernels_report):
    (stock, _, f_step, g_step, search), lines = (
        kernels_report.json["counts"][1],
        kernels_report.out.split("\n"),
    )
    shown = lines[lines.index(NEUTRAL) :]
    for row, start in ((f_step, "    model, F step "), (g_step, "    model, G step ")):
        (line,) = (line for line in shown[:14] if line.startswith(start))
        kernels, ratio, forward, backward, update, waits = line.removeprefix(start).split()
        assert (int(kernels), float(ratio)) == (row["kernels"], round(row["kernels"] / stock["kernels"], 2))
        assert int(forward) + int(backward) + int(update) == row["kernels"] and int(waits) == row["waits"]
    assert f"    model, {A_STEP} " in kernels_report.out and search["kernels"] == int(search["kernels"])
