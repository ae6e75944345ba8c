"""fairseq's options as data: some are Python expressions, which fairseq gives to ``eval``.

``--adaptive-softmax-cutoff 20000,60000``, ``--encoder-layers "[(512, 3)] * 20"``, ``--adam-betas "(0.9,
0.98)"``. On a command line that is its user's own affair. But to translate, fairseq reads the options of the
model from the checkpoint, so a checkpoint of strings and tensors, which ``torch.load`` has nothing against,
can run a program.
"""

import ast
import operator
import sys
from typing import Any

from modular_fairseq.patches.registry import change
from modular_fairseq_cli.errors import UsageError

OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}


@change("fairseq.*.eval")
def evaluate_options_as_literals() -> None:
    """`evaluate_literal` takes the place of the builtin `eval` in the modules of fairseq.

    Some options are Python expressions, which fairseq evaluates (fairseq/utils.py:787-811,
    fairseq/optim/adam.py:91). To translate, it reads the options of the model from the checkpoint, so a
    checkpoint of strings and tensors could run a program.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq."):
            module.eval = evaluate_literal  # a name of the module is found before the builtin


def evaluate_literal(expression: str) -> Any:
    """The value of a Python literal, or of literals joined by ``+`` and ``*``: what fairseq's options look
    like.

    Raises:
        UsageError: ``expression`` is anything else, such as a call.
        TypeError: ``expression`` is not a string; fairseq counts on that, as ``eval`` does it.
    """
    if not isinstance(expression, str):
        raise TypeError("evaluate_literal() arg 1 must be a string")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, RecursionError):
        raise UsageError(
            f"an option is {expression!r}, where fairseq expects numbers, strings, tuples or lists of them"
        ) from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    return ast.literal_eval(node)
