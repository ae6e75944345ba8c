"""Compute Eq. 1 of Multi-Stream Transformers, one stream at a time on ordinary layers."""


def summands(encoder, x, padding_mask=None):
    """Return the outputs [T, B, d] whose sum L_out gets: Z_in if there is a skip, and S_i(Z_in)."""
    z = encoder.layers[0](x, encoder_padding_mask=padding_mask)
    outputs = [z] if encoder.arrangement.skip else []
    for stream in encoder.streams:
        y = z
        for layer in stream:
            y = layer(y, encoder_padding_mask=padding_mask)
        outputs.append(y)
    return outputs


def encode(encoder, x, padding_mask=None):
    """Return Z_out [T, B, d] of the embedded source x [T, B, d].

    Pre-norm encoders have a final norm after this, which is left out.
    """
    return encoder.layers[-1](sum(summands(encoder, x, padding_mask)), encoder_padding_mask=padding_mask)
