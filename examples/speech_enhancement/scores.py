"""Scores of cleaned speech against clean speech: PESQ, SI-SDR and STOI, by maintained libraries."""

import warnings

from torch import Tensor

from modular_fairseq_cli.errors import UsageError

NAMES = ("pesq", "si_sdr", "stoi")


def score(wave: Tensor, clean: Tensor, rate: int) -> dict[str, float] | str:
    """Return the scores of a wave, or why it cannot be scored; both waves are [samples].

    PESQ is wide-band at 16 kHz and narrow-band at 8 kHz (ITU-T P.862.2 and P.862), SI-SDR is in dB, and STOI
    is between 0 and 1.

    Raises:
        UsageError: a library is missing, or the rate is neither 8 nor 16 kHz.
    """
    try:
        from pesq import PesqError, pesq
        from pystoi import stoi
        from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio
    except ModuleNotFoundError as error:
        raise UsageError(
            f"scores need the package {error.name}; install it by: pip install 'modular_fairseq[speech]'"
        ) from None
    if rate not in (8000, 16000):
        raise UsageError(f"PESQ is defined for 8000 and 16000 Hz, not {rate}; train with --sample-rate 16000")
    if not clean.abs().max() > 0:
        return "silent"
    quality = pesq(
        rate, clean.numpy(), wave.numpy(), "wb" if rate == 16000 else "nb", on_error=PesqError.RETURN_VALUES
    )
    if not quality >= 0:  # a code of an error, or no number for a silent wave
        return "too short or too silent for PESQ"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)  # STOI would be 0.00001
        try:
            intelligibility = stoi(clean.numpy(), wave.numpy(), rate)
        except RuntimeWarning:
            return "too short or too silent for STOI"
    ratio = scale_invariant_signal_distortion_ratio(wave, clean, zero_mean=True)
    return {"pesq": float(quality), "si_sdr": float(ratio), "stoi": float(intelligibility)}
