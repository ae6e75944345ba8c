"""A synthetic German-English corpus; `command` is `modular-fairseq toy-corpus`."""
