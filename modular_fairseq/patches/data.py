"""Mend how fairseq makes batches of a data set, prepares them in a thread, and masks whole words."""

import atexit
import multiprocessing
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import numpy as np
from fairseq.data.iterators import BackgroundConsumer, EpochBatchIterator
from fairseq.registry import REGISTRIES
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from torch import Tensor
from torch.utils.data._utils.worker import ManagerWatchdog

from modular_fairseq.patches.registry import change, replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.data.data_utils.batch_by_size")
def keep_every_sentence(
    batch_by_size: Callable, indices: np.ndarray, *args: Any, fixed_shapes: Any = None, **kwargs: Any
) -> list[np.ndarray]:
    """Let `batch_by_size` put every sentence into a batch.

    Unlike fairseq, fairseq-fixed drops the last batch unless its size is a multiple of
    --required-batch-size-multiple, by default 8 (fairseq/data/data_utils.py:357-358). `fairseq-generate`
    therefore silently leaves up to seven sentences of a test set untranslated, and they are the longest ones.
    Besides, `batch_by_size` fails if there is no sentence at all, and this patch then returns no batches. It
    ends in an AssertionError if a sentence has more than --max-tokens tokens, for which this patch has one
    sentence.
    """
    if len(indices) == 0:
        return []
    try:
        batches = batch_by_size(indices, *args, fixed_shapes=fixed_shapes, **kwargs)
    except AssertionError as error:
        if not (limit := re.search(r"max_tokens=(\d+)", str(error))):
            raise
        raise UsageError(
            f"--max-tokens {limit[1]} is less than the length of the longest sentence; give a larger number"
        ) from None
    kept = sum(len(batch) for batch in batches)
    if fixed_shapes is None and kept < len(indices):
        batches.append(indices[kept:])
    return batches


FIRST_TOKENS = 5  # of a sentence, in messages
SECONDS = 10  # after which the process ends without waiting for a thread
_running: WeakSet[BackgroundConsumer] = WeakSet()
_process_ends = threading.Event()


@replace("fairseq.data.iterators.BackgroundConsumer.run")
def end_threads_before_the_process(run: Callable, consumer: BackgroundConsumer) -> None:
    """Let the thread that prepares batches end before the process ends.

    fairseq leaves the thread alone when a training ends in the middle of an epoch, after --max-update or an
    error (fairseq/data/iterators.py:702-710). If the thread is inside of torch when Python ends, Python
    aborts the process: "terminate called without an active exception". The exit status is then 134, whether
    the training has failed or not.
    """
    consumer._source = _until_the_process_ends(consumer._source)
    _running.add(consumer)
    run(consumer)


def _until_the_process_ends(source: Iterable) -> Iterator:
    for item in source:
        if _process_ends.is_set():
            return
        yield item


@atexit.register
def _end_threads() -> None:
    """Take the batches of the threads, which wait for room in their queues, until the threads have ended."""
    _process_ends.set()
    end = time.monotonic() + SECONDS
    for consumer in list(_running):
        while consumer.is_alive() and time.monotonic() < end:
            try:
                consumer._queue.get(timeout=0.01)
            except queue.Empty:
                continue


@replace("torch.utils.data._utils.worker.ManagerWatchdog.__init__")
def end_processes_that_read_with_their_parent(init: Callable, watchdog: ManagerWatchdog) -> None:
    """Let a process that reads data end within 5 seconds if its parent process has been killed.

    Such a process (--num-workers, fairseq/data/iterators.py:503-511) looks every 5 seconds whether it still
    has the parent that it had at its start. torch asks for that parent only when the process already runs. If
    the parent has been killed by then, the process takes the one that adopted it for its parent, and lives on
    for ever.
    """
    init(watchdog)
    parent = multiprocessing.parent_process()
    if parent and parent.pid and multiprocessing.get_start_method() == "fork":
        watchdog.manager_pid = parent.pid


@replace("torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__del__")
def leave_the_processes_that_read_to_their_parent(delete: Callable, iterator: Any) -> None:
    """Let only the process that has started processes which read data (--num-workers) end them.

    fairseq forks such processes from a thread (fairseq/data/iterators.py:702-710). Each has a copy of the
    iterators of that moment. When Python collects a copy, torch tries to end the processes of the other
    iterator, and shows a traceback that ends with "can only test a child process" in the midst of the log.
    """
    workers = getattr(iterator, "_workers", [])
    if all(worker._parent_pid == os.getpid() for worker in workers):
        delete(iterator)


@replace("fairseq.tasks.language_modeling.LanguageModelingTask.load_dataset")
def refuse_blocks_without_tokens(
    load_dataset: Callable, task: LanguageModelingTask, *args: Any, **kwargs: Any
) -> Any:
    """Refuse blocks of a language model without a token to predict.

    fairseq-eval-lm subtracts --context-window from --tokens-per-sample (fairseq_cli/eval_lm.py:246), and then
    fails with a division by zero, or with a message about negative dimensions.
    """
    if (left := task.args.tokens_per_sample) < 1:
        raise UsageError(
            f"--tokens-per-sample, less the --context-window of fairseq-eval-lm, is {left}, so no token of a "
            "block is predicted; give a larger --tokens-per-sample or a smaller --context-window"
        )
    return load_dataset(task, *args, **kwargs)


@replace("fairseq.tasks.fairseq_task.FairseqTask.filter_indices_by_size")
def name_the_first_that_is_too_long(
    filter_indices_by_size: Callable,
    task: FairseqTask,
    indices: np.ndarray,
    dataset: Any,
    max_positions: Any = None,
    ignore_invalid_inputs: bool = False,
) -> np.ndarray:
    """Refuse a sample that is longer than the model has positions by one sentence.

    fairseq ends in an exception with a traceback (fairseq/tasks/fairseq_task.py:184-192), for example when a
    line for fairseq-interactive is too long.
    """
    # Data sets that consist of several have a dictionary of sizes, which fairseq shows.
    if not ignore_invalid_inputs and not isinstance(max_positions, Mapping):
        _, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) > 0:
            sizes, positions = dataset.size(ignored[0]), max_positions
            which = f"sample {ignored[0]}, counted from 0,"
            if getattr(dataset, "src_dict", None) is not None and getattr(dataset, "tgt", None) is None:
                sizes, positions = np.atleast_1d(sizes)[0], np.atleast_1d(max_positions)[0]
                # Of a line for fairseq-interactive, the dataset does not know the number.
                first = dataset.src_dict.string(dataset.src[ignored[0]][:FIRST_TOKENS])
                which = f"the sentence that begins with {first!r}"
            raise UsageError(
                f"{which} has {_tokens(sizes)} tokens, and the model has {_tokens(positions)} positions; "
                "shorten it, or leave such samples out by --skip-invalid-size-inputs-valid-test"
            )
    return filter_indices_by_size(task, indices, dataset, max_positions, ignore_invalid_inputs)


def _tokens(sizes: Any) -> str:
    return " and ".join(f"{size:,}" for size in np.atleast_1d(sizes).tolist())


@change("fairseq.data.iterators.EpochBatchIterator.first_batch")
def name_the_shortest_sample_if_all_are_too_long() -> None:
    """Refuse training and validation data of which every sample is too long by one sentence.

    fairseq leaves such samples out of the training, and out of the validation if it may. If none is left, it
    says that the data set is empty, and shows a traceback (fairseq/data/iterators.py:362-371).
    """
    first_batch = EpochBatchIterator.first_batch.fget

    def checked(iterator: EpochBatchIterator) -> Any:
        if len(iterator.frozen_batches) == 0 and len(iterator.dataset) > 0:
            shortest = min(map(iterator.dataset.num_tokens, range(len(iterator.dataset))))
            raise UsageError(
                f"every sample of the data is too long; the shortest has {shortest:,} tokens. Give a larger "
                "--max-tokens, and a larger --tokens-per-sample or --max-positions (or "
                "--max-source-positions and --max-target-positions)"
            )
        return first_batch(iterator)

    EpochBatchIterator.first_batch = property(checked)


@replace("fairseq.tasks.language_modeling.LanguageModelingTask.eval_lm_dataloader")
def refuse_blocks_beyond_the_positions(
    eval_lm_dataloader: Callable, task: LanguageModelingTask, dataset: Any, *args: Any, **kwargs: Any
) -> Any:
    """Refuse blocks of fairseq-eval-lm that are longer than the model has positions.

    fairseq leaves such blocks out with a warning (fairseq/tasks/language_modeling.py:361-366), and shows the
    perplexity of the others. It is 1.00 if none is left, as without --tokens-per-sample, which is then 1,024.
    With --context-window it looks at blocks alone, and the model gets each with the tokens before it.
    """
    positions, window = kwargs.get("max_positions"), kwargs.get("context_window", 0)
    sizes = np.asarray(dataset.sizes)
    longest = int((sizes + np.minimum(np.cumsum(sizes) - sizes, window)).max(initial=0))
    if positions is not None and longest > positions:
        block = "a block with its --context-window" if window else "a block"
        raise UsageError(
            f"{block} has {longest:,} tokens, and the model has {positions:,} positions, so its perplexity "
            "cannot be measured; give --tokens-per-sample as in the training, or the --sample-break-mode none"
        )
    return eval_lm_dataloader(task, dataset, *args, **kwargs)


@replace("fairseq.tasks.language_modeling.LanguageModelingTask.inference_step")
def continue_empty_beginnings(
    inference_step: Callable,
    task: LanguageModelingTask,
    generator: Any,
    models: Any,
    sample: dict,
    prefix_tokens: Tensor | None = None,
    constraints: Any = None,
) -> Any:
    """Let a language model continue an empty line from nothing, as the first of a text.

    fairseq-generate --prefix-size takes the end of such a line for its beginning. One hypothesis then ends in
    the first step, where all others are impossible, so that the search never ends and fails with an assertion
    (fairseq/sequence_generator.py:503-507).
    """
    if prefix_tokens is not None and prefix_tokens.numel():
        empty = prefix_tokens[:, :1].eq(task.source_dictionary.eos())
        prefix_tokens = prefix_tokens.masked_fill(empty, task.source_dictionary.pad())
    return inference_step(task, generator, models, sample, prefix_tokens, constraints)


@replace("fairseq.tasks.masked_lm.MaskedLMTask.load_dataset")
def mask_whole_words(load_dataset: Callable, task: MaskedLMTask, *args: Any, **kwargs: Any) -> None:
    """Let --mask-whole-words find the options of --bpe, and refuse it if --bpe cannot tell where words begin.

    `MaskedLMTask.load_dataset` (fairseq/tasks/masked_lm.py:203-207) looks for the options of --bpe in
    `task.args`. A task that is built from a dataclass has no `args`, so --mask-whole-words ends in an
    AttributeError (fairseq issue 3924). Shares of masked words that are no shares end in an AssertionError
    (fairseq/data/mask_tokens_dataset.py:73-76).
    """
    cfg = task.cfg
    if not 0 < cfg.mask_prob < 1:
        raise UsageError(
            f"--mask-prob {cfg.mask_prob}: give a share of the words between 0 and 1, such as 0.15"
        )
    shares = cfg.random_token_prob, cfg.leave_unmasked_prob
    if min(shares) < 0 or sum(shares) > 1:
        raise UsageError(
            f"--random-token-prob {shares[0]} and --leave-unmasked-prob {shares[1]} are shares of the masked "
            "words: each must be at least 0, and both together at most 1"
        )
    if cfg.mask_whole_words and not hasattr(task, "args"):
        bpe = task.cfg._get_root().bpe
        kinds = REGISTRIES["bpe"]["registry"]
        knowing = sorted(name for name, kind in kinds.items() if hasattr(kind, "is_beginning_of_word"))
        if bpe is None or bpe._name not in knowing:
            raise UsageError(
                "--mask-whole-words needs a --bpe that knows where words begin; use one of "
                f"{', '.join(knowing)}, or leave it out"
            )
        task.args = bpe
    return load_dataset(task, *args, **kwargs)
