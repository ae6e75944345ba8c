"""Compute Eq. 1 of Multi-Stream Transformers, one stream at a time on ordinary layers."""


def encode(encoder, x, padding_mask=None):
    """Return Z_out [T, B, d] of the embedded source x [T, B, d].

    Pre-norm encoders have a final norm after this, which is left out.
    """
    first, last = encoder.layers[0], encoder.layers[-1]
    z = first(x, encoder_padding_mask=padding_mask)
    total = z if encoder.arrangement.skip else 0
    for stream in encoder.streams:
        y = z
        for layer in stream:
            y = layer(y, encoder_padding_mask=padding_mask)
        total = total + y
    return last(total, encoder_padding_mask=padding_mask)
