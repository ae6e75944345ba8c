"""Which layers a stack has, and which of them are TIM layers."""


def depth_of_encoder(layers: int, streams: int) -> int:
    """Layers that a word passes: the first, those of one stream, and the last, where `layers` = 2 + streams x
    L; all with one stream.
    """
    return layers if streams == 1 else 2 + (layers - 2) // streams


def tim_layers(placement: str, depth: int) -> list[bool]:
    """Which of `depth` layers are TIM layers: none, all, or the middle ones, "all of the transformer layers
    except for the first two layers and the last layer" (appendix A.3; appendix A.1 has it the other way
    round, against everything else in the paper)."""
    return [
        placement == "all" or (placement == "middle" and 2 <= number < depth - 1) for number in range(depth)
    ]
