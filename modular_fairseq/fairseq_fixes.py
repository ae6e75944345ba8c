"""What fairseq-fixed 0.12.3.1 gets wrong and our results or their users would suffer from."""

import functools
import os
import shutil
from collections.abc import Collection

from fairseq import file_io, options
from fairseq.data import data_utils

from modular_fairseq_cli.errors import UsageError


def keep_every_sentence() -> None:
    """Let `batch_by_size` return all sentences; a second call changes nothing.

    Unlike fairseq, fairseq-fixed drops the last batch unless its size is a multiple of
    --required-batch-size-multiple (8): without a word, `fairseq-generate` leaves up to seven sentences of a
    test set untranslated, and they are the longest ones.
    """
    batch_by_size = data_utils.batch_by_size
    if getattr(batch_by_size, "keeps_every_sentence", False):
        return

    @functools.wraps(batch_by_size)
    def batch_by_size_of_all(indices, *args, fixed_shapes=None, **kwargs):
        if len(indices) == 0:
            return []
        batches = batch_by_size(indices, *args, fixed_shapes=fixed_shapes, **kwargs)
        kept = sum(len(batch) for batch in batches)
        if fixed_shapes is None and kept < len(indices):
            batches.append(indices[kept:])
        return batches

    batch_by_size_of_all.keeps_every_sentence = True
    data_utils.batch_by_size = batch_by_size_of_all


def copy_checkpoints_whole() -> None:
    """Let a copy of a local file be there whole or not at all; a second call changes nothing.

    checkpoint_best.pt and checkpoint_last.pt are copies of another checkpoint. fairseq writes them in place,
    so a run that is killed at that moment leaves a part of a file under the very name that it resumes from.
    """
    copy = file_io.PathManager.copy
    if getattr(copy, "copies_whole", False):
        return

    @functools.wraps(copy)
    def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if file_io.PathManager.path_requires_pathmanager(dst_path) or (
            os.path.exists(dst_path) and not overwrite
        ):
            return copy(src_path, dst_path, overwrite)
        part = f"{dst_path}.part"
        shutil.copyfile(src_path, part)
        os.replace(part, dst_path)
        return True

    copy_whole.copies_whole = True
    file_io.PathManager.copy = staticmethod(copy_whole)


def name_the_criterion_of_options(criterion: str, flags: Collection[str]) -> None:
    """Let fairseq's commands say in one sentence that an option needs a --criterion; a second call changes
    nothing.

    fairseq's parser only knows the options of the criterion that was chosen; of others it says, after 190
    lines of usage, that they are unrecognized.
    """
    parse = options.parse_args_and_arch
    if getattr(parse, "names_criterion", False):
        return

    @functools.wraps(parse)
    def parse_and_name(parser, *args, **kwargs):
        usual = parser.error

        def error(message: str) -> None:
            for word in message.split() if message.startswith("unrecognized arguments") else ():
                flag = word.partition("=")[0]
                if flag in flags:
                    raise UsageError(
                        f"{flag} has no effect without --criterion {criterion}; add that, or leave it out"
                    )
            usual(message)

        parser.error = error
        return parse(parser, *args, **kwargs)

    parse_and_name.names_criterion = True
    options.parse_args_and_arch = parse_and_name
