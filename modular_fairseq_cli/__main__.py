"""`python -m modular_fairseq_cli` is the command `modular-fairseq`."""

from modular_fairseq_cli.main import main

if __name__ == "__main__":
    main()
