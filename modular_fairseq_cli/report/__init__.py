"""The page and the pictures of analyses and training logs; `command` is `modular-fairseq report`."""
