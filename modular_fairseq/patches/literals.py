"""Evaluate the options of fairseq that are Python expressions without running code.

fairseq passes such options to ``eval``. Examples are ``--adaptive-softmax-cutoff 20000,60000``,
``--encoder-layers "[(512, 3)] * 20"`` and ``--adam-betas "(0.9, 0.98)"``. This is harmless if users type the
options themselves. But when fairseq translates, it takes the options of the model from the checkpoint. A
checkpoint that contains only strings and tensors, which ``torch.load`` accepts, could then run a program.
"""

import argparse
import ast
import operator
import sys
from collections.abc import Callable, Sized
from typing import Any

from modular_fairseq.patches.registry import change, replace
from modular_fairseq_cli.errors import UsageError

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
}
LONGEST = 100_000  # items of a list, tuple or text that `*` makes


@change("fairseq.*.eval")
def evaluate_options_as_literals() -> None:
    """Replace the builtin `eval` in the modules of fairseq by a function that evaluates literals only.

    Some options are Python expressions, which fairseq evaluates (fairseq/utils.py:787-811,
    fairseq/optim/adam.py:91). When fairseq translates, it takes the options of the model from the checkpoint.
    A checkpoint of strings and tensors could therefore run a program. With this patch, an option may consist
    of Python literals that are joined by `+` and `*`. Any other expression is refused.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq."):
            vars(module)["eval"] = evaluate_literal  # Python looks up module globals before builtins


@replace("fairseq.dataclass.utils.eval_str_list")
def refuse_lists_that_are_none(evaluate: Callable, x: Any, x_type: type = float) -> list | None:
    """Refuse a list of numbers that cannot be read, such as ``--lr x``, as argparse refuses other values.

    fairseq's function raises a SyntaxError for some texts (fairseq/dataclass/utils.py:25-36). argparse does
    not expect it, so that a traceback is shown.
    """
    try:
        return evaluate(x, x_type)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise argparse.ArgumentTypeError(f"{x!r} is no number and no list of numbers") from None


def evaluate_literal(expression: str) -> Any:
    """Return the value of an option that is a Python literal, or literals joined by ``+`` and ``*``.

    Raises:
        UsageError: the expression is anything else, such as a function call.
        TypeError: the expression is not a string. ``eval`` raises the same error, and fairseq relies on it.
    """
    if not isinstance(expression, str):
        raise TypeError("evaluate_literal() arg 1 must be a string")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"an option is {expression!r}, but fairseq expects numbers, strings, or tuples or lists of them "
            f"(at most {LONGEST:,})"
        ) from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left), _value(node.right)
        for items, times in ((left, right), (right, left)) if isinstance(node.op, ast.Mult) else ():
            if isinstance(items, Sized) and isinstance(times, int) and len(items) * times > LONGEST:
                raise ValueError(f"more than {LONGEST:,} items")
        return OPERATORS[type(node.op)](left, right)
    return ast.literal_eval(node)
