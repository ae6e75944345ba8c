"""Make the validations of JoeyNMT 2.3.0 short: copy this file to its environment as sitecustomize.py.

When JoeyNMT validates, it also translates the validation set, although `scripts/toolkits.py` asks for the
loss only. On a CPU this takes longer than the training. With this file, it translates one token per sentence.
The training, the choice of the checkpoint and the test do not depend on these translations. Python imports a
module of this name when it starts.
"""

import sys

if sys.orig_argv[1:4] == ["-m", "joeynmt", "train"]:
    from joeynmt import training

    predict = training.predict

    def predict_one_token(args, **options):
        """Validate as `training.predict` does, with translations of one token."""
        return predict(args=args._replace(max_output_length=1), **options)

    training.predict = predict_one_token
