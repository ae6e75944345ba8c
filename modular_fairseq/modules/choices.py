"""Check the arguments of modules that take one of several words."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of an argument is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
