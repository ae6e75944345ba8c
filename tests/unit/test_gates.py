"""Test that analysis/gates.py computes the entropies and shares of known gates."""

import math

import pytest
import torch

from modular_fairseq.analysis.attention_maps import ENCODER
from modular_fairseq.analysis.gates import GateReport, GateReports, Gates
from modular_fairseq.analysis.one_pass import one_pass
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq_cli.errors import UsageError
from tests.helpers import LENGTHS, batch, build


def test_reports_of_known_gates():
    model = build("mae_transformer", mae_gate_init="zero")
    gate = expert_mixtures(model)["encoder.layers.0.self_attn"].gate_network
    gate.fc2.bias.data = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    [found] = one_pass(model, [batch(LENGTHS), batch(LENGTHS[:2], seed=1)], [Gates(model)])
    reports = {report.module: report for report in found.modules}
    assert len(reports) == 6
    known = reports["encoder.layers.0.self_attn"]
    assert known.entropy == pytest.approx(-sum(p * math.log(p) for p in (0.4, 0.3, 0.2, 0.1)), abs=1e-6)
    assert known.shares == [1.0, 0.0, 0.0, 0.0]
    assert reports["decoder.layers.1.encoder_attn"].entropy == pytest.approx(math.log(4), abs=1e-6)


def test_the_last_line_of_a_table_of_gates_sums_it_up():
    rest = (math.log(4), "sentences", 10)
    reports = GateReports.of(
        [
            GateReport("a", ENCODER, 1, None, math.log(4), *rest, [0.25] * 4),
            GateReport("bb", ENCODER, 2, None, 0.5 * math.log(4), *rest, [0.9, 0.1, 0.0, 0.0]),
        ]
    )
    lines = reports.text().splitlines()
    assert lines[1].split() == ["a", "1.386", "25.0", "25.0", "25.0", "25.0"]
    assert (
        lines[-1]
        == "mean gate entropy 1.040 nats (0.750 of a uniform gate's 1.386); shares from 0.0 to 90.0 %, "
        "2 of 8 experts under 1 %"
    )


def test_a_model_without_gates_is_refused():
    with pytest.raises(UsageError, match="the model has no learned gates"):
        Gates(build())


def test_nothing_is_counted_after_the_pass_also_after_an_exception():
    model = build("mae_transformer")
    one_pass(model, [batch(LENGTHS)], [Gates(model)])
    with pytest.raises(TypeError):
        one_pass(model, [batch(LENGTHS), {"net_input": {"nothing": 1}}], [Gates(model)])
    assert all(mixture.statistics is None for mixture in expert_mixtures(model).values())
