"""Prepares a data set: `python -m modular_fairseq_cli.corpora.command RECIPE -- OPTIONS`, called by the prepare-*.sh scripts.

RECIPE is what a script says of its data set, OPTIONS what its user adds (options.py). Exit code
0: prepared; 1: something is wrong with the data; 2: with the options; 130: interrupted. What is wrong is said
in one sentence.
"""

import sys

from modular_fairseq_cli.corpora import options, runner
from modular_fairseq_cli.errors import UsageError


def main() -> int:
    recipe, user = options.parse(sys.argv[1:])
    try:
        runner.run(recipe, user)
    except UsageError as error:
        sys.stderr.write(f"{recipe.script}: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{recipe.script}: {error.filename or 'a file'}: {error.strerror or error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{recipe.script}: interrupted; the same command goes on\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
