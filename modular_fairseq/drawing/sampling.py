"""Sample the pixels of pictures from a language model, one after the other."""

import torch
from fairseq.models import FairseqLanguageModel
from torch import Tensor
from tqdm import tqdm


@torch.no_grad()
def draw(
    model: FairseqLanguageModel,
    given: Tensor,
    pixels: int,
    colours: int,
    seed: int,
    temperature: float = 1.0,
    top: int | None = None,
) -> Tensor:
    """Return pictures as numbers of colours, int64 [B, pixels].

    The model keeps the keys and values of earlier pixels (fairseq's incremental state), so that each step
    reads one pixel. A progress bar is shown if standard error is a terminal.

    Args:
        model: a language model in evaluation mode, of the task language_modeling. Its dictionary has the
            colours after fairseq's special symbols.
        given: the first pixels of each picture, int64 [B, K], which are kept; K may be 0.
        pixels: number of pixels of a picture.
        colours: number of colours.
        seed: seed of the random numbers. They are drawn on the CPU, so they are the same on every device.
        temperature: divides the scores; near 0, the likeliest colour is taken nearly always.
        top: draw from the `top` likeliest colours only; None: from all.
    """
    dictionary = model.decoder.dictionary
    first, device = dictionary.nspecial, next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(given), pixels + 1), dictionary.eos(), dtype=torch.int64, device=device)
    tokens[:, 1 : given.size(1) + 1] = given.to(device) + first
    state: dict = {}
    for step in tqdm(range(pixels), unit="pixel", leave=False, disable=None):
        output = model.decoder(tokens[:, : step + 1], incremental_state=state)[0][:, -1:]
        if step < given.size(1):
            continue
        # The output of a model with an adaptive softmax has no score for each colour.
        scores = model.get_normalized_probs((output, None), log_probs=True)[:, 0]
        of_colours = scores[:, first : first + colours].double().cpu()
        of_colours = (of_colours - of_colours.max(dim=1, keepdim=True).values) / temperature
        if top is not None and top < colours:
            least = of_colours.topk(top, dim=1).values[:, -1:]
            of_colours = of_colours.masked_fill(of_colours < least, -torch.inf)
        chosen = of_colours.softmax(1).multinomial(1, generator=generator).squeeze(1)
        tokens[:, step + 1] = chosen.to(device) + first
    return (tokens[:, 1:] - first).cpu()
