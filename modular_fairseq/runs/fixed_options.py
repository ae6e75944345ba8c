"""The options of fairseq-train and fairseq-generate that users of the run engine must not give.

By `FIXED` a run is stored, validated, ended and continued. With others it would lose its checkpoints, choose
them by other data, or end differently after a kill. By `FIXED_IN_DECODING` its translations are made and
read. With others a score would lack sentences, or be of other sentences or of another model.
"""

from collections.abc import Container

from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError

FIXED = (
    "--save-dir",
    "--user-dir",
    "--log-format",
    "--log-file",
    "--valid-subset",
    "--disable-validation",
    "--stop-time-hours",
    "--no-save",
    "--no-last-checkpoints",
    "--no-best-checkpoints",
    "--no-save-optimizer-state",
    "--checkpoint-suffix",
    "--restore-file",
    "--reset-dataloader",
    "--reset-lr-scheduler",
    "--reset-meters",
    "--reset-optimizer",
    "--distributed-port",
)
FIXED_IN_DECODING = (
    "--path",
    "--gen-subset",
    "--user-dir",
    "--results-path",
    "--quiet",
    "--score-reference",
    "--nbest",
    "--num-shards",
    "--shard-id",
)

FEWER_CHECKPOINTS = ("--no-epoch-checkpoints", "--save-interval")  # of epochs, which an average needs


def refuse_fixed(
    words: list[str], given: str, remedy: str = "leave it out", fixed: Container[str] = FIXED
) -> None:
    """Refuse these options.

    Args:
        words: words of a command of fairseq.
        given: where they were given, for the message, such as "after the --".
        remedy: what the user should do, for the message.
        fixed: the options.

    Raises:
        UsageError: one of the options is among the words.
    """
    for option in by_option(words):
        if option in fixed:
            raise UsageError(
                f"{option} cannot be given {given}, because this command sets it or needs its default; "
                f"{remedy}"
            )


def refuse_fewer_checkpoints(words: list[str], given: str) -> None:
    """Refuse options with which an epoch may leave no checkpoint, for a run whose last epochs are averaged.

    Args:
        words: words of a fairseq-train command.
        given: where they were given, for the message, such as "among OPTIONS".

    Raises:
        UsageError: one of the options is among the words. `--save-interval 1` is fairseq's default and is not
            refused.
    """
    values = by_option(words)
    for option in FEWER_CHECKPOINTS:
        if option in values and values[option] != ["1"]:
            raise UsageError(
                f"{option} cannot be given {given}, because the checkpoints of the last epochs are averaged; "
                "leave it out"
            )
