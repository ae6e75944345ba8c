"""Eq. 1 of Multi-Stream Transformers as a loop over streams of ordinary encoder layers."""

import copy

from modular_fairseq.models.layers import TransformerEncoderLayer, tim_layers


def loop(encoder, cfg):
    """The streams of our encoder as a list of lists of its ordinary layers, with the parameters that a checkpoint has for each stream."""
    state = encoder.streams.state_dict()
    depth = len(encoder.streams.layers)
    placement = tim_layers(cfg.tim_layers, depth + 2)[1:-1]
    streams = []
    for i in range(encoder.streams.streams):
        layers = [TransformerEncoderLayer(copy.copy(cfg), tim) for tim in placement]
        for number, layer in enumerate(layers):
            prefix = f"{i}.{number}."
            layer.load_state_dict({key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})
        streams.append([layer.to(encoder.embed_tokens.weight.dtype) for layer in layers])
    return streams


def encode(encoder, streams, x, padding_mask=None):
    """Z_out [T, B, d] of the embedded source x [T, B, d], without the final norm of pre-norm encoders."""
    first, last = encoder.layers[0], encoder.layers[-1]
    z = first(x, encoder_padding_mask=padding_mask)
    total = z if encoder.stream_skip else 0
    for layers in streams:
        y = z
        for layer in layers:
            y = layer(y, encoder_padding_mask=padding_mask)
        total = total + y
    return last(total, encoder_padding_mask=padding_mask)
