"""Search for accidents that the program does not survive: `bash scripts/soak.sh`.

A part, such as `kills`, makes cases from a seed. A case gets an empty folder, makes an accident happen there,
and says what is wrong, or "".
"""
