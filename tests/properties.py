"""Check the properties that every translation model must have.

Step-by-step decoding equals teacher forcing, no position depends on the future, and padding changes nothing.
"""

import copy

import torch

from tests.helpers import LENGTHS, batch, build, randomize_parts


def ready(**changes):
    """Build a model with random gates and masks, in evaluation mode."""
    model = build(**changes)
    randomize_parts(model)
    return model.eval()


def logits(model, sample):
    """Return the teacher-forced logits [B, T, V] of a batch."""
    return model(**sample["net_input"])[0]


def real_logits(model, sample):
    """Return the teacher-forced logits [tokens, V] of the positions that are not padding.

    fairseq's Transformer computes others at padded positions, as padding does not see padding there.
    """
    return logits(model, sample)[sample["target"].ne(1)]


def step_by_step_equals_teacher_forcing(model):
    """Check that decoding one word at a time gives the logits of a single forward pass."""
    sample = batch([(5, 6), (8, 6), (2, 6)])
    expected = logits(model, sample)
    encoder_out = model.encoder(sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"])
    previous, state = sample["net_input"]["prev_output_tokens"], {}
    for t in range(previous.size(1)):
        found, _ = model.decoder(previous[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
        real = sample["target"][:, t].ne(1)
        torch.testing.assert_close(found[real, 0], expected[real, t], atol=1e-5, rtol=0)


def hypotheses_of_a_beam_equal_teacher_forcing_however_they_are_reordered(model, beam=5):
    """Check that every hypothesis of a beam has the logits of its words in a single forward pass.

    Between steps the beam is reordered, and sentences that are finished leave the batch.
    """
    net_input = batch([(5, 1), (8, 1), (2, 1)])["net_input"]
    source, lengths = net_input["src_tokens"], net_input["src_lengths"]
    generator = torch.Generator().manual_seed(0)
    encoder_out = model.encoder(source, lengths)
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, torch.arange(3).repeat_interleave(beam))
    assert encoder_out["encoder_out"][0].size(1) == 3
    tokens, sentences, state = torch.full((3 * beam, 1), 2), torch.arange(3), {}
    for t in range(7):
        found, _ = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
        if t in (0, 3, 5):  # at the start, and when a sentence has left the batch
            rows = sentences.repeat_interleave(beam)
            each_row = model.encoder(source[rows], lengths[rows])
        expected, _ = model.decoder(tokens, encoder_out=each_row)
        torch.testing.assert_close(found[:, 0], expected[:, -1], atol=1e-5, rtol=0)
        left = sentences.numel() - (t in (2, 4))  # one sentence is finished after steps 2 and 4
        stay = torch.randperm(sentences.numel(), generator=generator)[:left].sort().values
        order = torch.cat([s * beam + torch.randint(beam, (beam,), generator=generator) for s in stay])
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        words = torch.randint(4, 44, (len(order), 1), generator=generator)
        tokens, sentences = torch.cat([tokens[order], words], dim=1), sentences[stay]


def words_to_come_do_not_change_earlier_logits(model):
    """Check that other target words from position 4 on leave the earlier logits unchanged."""
    sample = batch([(5, 6), (8, 6)])
    before = logits(model, sample)
    sample["net_input"]["prev_output_tokens"][:, 4:] = 5
    after = logits(model, sample)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def a_sentence_gives_the_same_alone_and_in_a_padded_batch(model):
    """Check that the logits of a sentence, even of a single token, do not depend on padding."""
    together = batch(LENGTHS)
    all_logits = logits(model, together)
    for i, (s, t) in enumerate(LENGTHS):
        net_input = {
            "src_tokens": together["net_input"]["src_tokens"][i : i + 1, -s:],
            "src_lengths": torch.tensor([s]),
            "prev_output_tokens": together["net_input"]["prev_output_tokens"][i : i + 1, :t],
        }
        torch.testing.assert_close(all_logits[i, :t], model(**net_input)[0][0], atol=1e-5, rtol=0)


def preparing_it_for_inference_changes_nothing(model):
    """Check that what fairseq's commands keep for a search gives the same logits, also in a beam.

    If other parameters are loaded afterwards, the logits are of these.
    """
    prepared, sample = copy.deepcopy(model), batch(LENGTHS)
    prepared.make_generation_fast_(beamable_mm_beam_size=5, need_attn=False)
    with torch.no_grad():
        for _ in range(2):
            expected, found = (real_logits(each, sample) for each in (model, prepared))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            hypotheses_of_a_beam_equal_teacher_forcing_however_they_are_reordered(prepared)
            changed = {name: value * 0.9 for name, value in model.state_dict().items()}
            for each in (model, prepared):
                each.load_state_dict(changed)
        assert not torch.allclose(real_logits(model, sample), expected, atol=1e-3)


PROPERTIES = [
    step_by_step_equals_teacher_forcing,
    hypotheses_of_a_beam_equal_teacher_forcing_however_they_are_reordered,
    words_to_come_do_not_change_earlier_logits,
    a_sentence_gives_the_same_alone_and_in_a_padded_batch,
    preparing_it_for_inference_changes_nothing,
]
