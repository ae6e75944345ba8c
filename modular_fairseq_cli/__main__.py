"""`python -m modular_fairseq_cli` runs the command line `modular-fairseq`."""

from modular_fairseq_cli.main import main

if __name__ == "__main__":
    main()
