"""An example of a plugin on our layers: TIM removes noise from speech (Lamb et al. 2021, 4.2 and A.2).

The model reads the log magnitudes of noisy speech, frame by frame. It estimates the log magnitudes of clean
speech. The first five of these files are the plugin, in the order in which they are best read, and the others
are tools around it:

    audio.py        reads and writes files, mixes speech and noise, and computes spectra
    data.py         the recordings of a folder as a data set of fairseq
    model.py        the model and its archs
    training.py     the task and the criterion, which fairseq-train gets by --user-dir
    analysis.py     `modular-fairseq analyze speech`: the competition over time, beside the spectrogram
    scores.py       PESQ, SI-SDR and STOI
    commands.py     commands to evaluate and clean: python examples/speech_enhancement --help
    digits.py       the command that prepares spoken digits, and toys.py one that makes toy recordings

docs/speech.md shows the commands.
"""

from . import analysis, model, training  # noqa: F401  (they register what fairseq-train and analyze need)
