"""The options of fairseq-train that users of the run engine must not give.

By these options a run is stored, validated, ended and continued. With others it would lose its checkpoints,
choose them by other data, or end differently after a kill.
"""

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
