"""Test the demo, from text to a report."""

import json

import sacrebleu

from modular_fairseq.runs import demo
from modular_fairseq_cli import main as cli


def test_the_demo_goes_from_text_to_a_report(tmp_path, monkeypatch, capsys):
    """The demo is started as a user starts it, but with a smaller corpus and budget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo, "RECIPE", [{"5": "2"}.get(word, word) for word in demo.RECIPE])
    output_of, sizes = demo.output_of, ["--train", "400", "--valid", "20", "--test", "20"]
    monkeypatch.setattr(
        demo, "output_of", lambda *words: output_of(*words, *(sizes if words[0] == "toy-corpus" else []))
    )
    cli.main(["demo", "mae_transformer", "--encoder-layers", "1"])
    shown, out = capsys.readouterr().out, tmp_path / "demo/mae_transformer_tiny_cpu-encoder-layers-1"
    score = json.loads((out / "score.json").read_text())
    hypotheses, references = (
        (out / file).read_text().splitlines() for file in ("test.hyp", "corpus/test.en")
    )
    bleu = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score
    assert score["bleu"] == bleu and f"BLEU                    {bleu:.2f}   (nrefs:1|" in shown
    assert f"report                  {out.relative_to(tmp_path)}/report.html" in shown
    page = (out / "report.html").read_text()
    assert "gate_entropy" in page
    for file in (
        "data/dict.de.txt",
        "checkpoints/checkpoint2.pt",
        "averaged.pt",
        "train.log",
        "generate.out",
    ):
        assert (out / file).exists()
    assert "--mae-gate-interval 2" in (out / "train.log").read_text().splitlines()[0]
    for heading, file in (
        ("gates before learning", "checkpoints/checkpoint1.pt"),
        ("gates after", "averaged.pt"),
    ):
        cli.main(["analyze", "gates", str(out / "data"), "--path", str(out / file)])
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith("mean gate entropy") and f"{heading:<24}{line}\n" in shown
    assert "parameters   " in shown and "  train on your own text:\n" in shown
    assert "epoch 2, update " in shown and "left]" in shown and "analyze single-expert" in shown
