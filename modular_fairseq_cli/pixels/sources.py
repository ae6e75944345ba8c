"""Read pictures from IDX files (MNIST), .npz files of NumPy, and folders and tar archives of image files."""

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import files_below
from modular_fairseq_cli.pixels.optional import optional
from modular_fairseq_cli.processes import say

Pictures = NDArray[np.uint8]  # [pictures, height, width, channels]
ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff"}
PARTS = ("train", "test")
LUMINANCE = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
TRANSPARENT = "transparent pixels, whose colour is not known; put it on a background"
IDX_BYTES = 0x0803  # the first number of an IDX file of three dimensions of bytes


class Source(NamedTuple):
    """The pictures of a source.

    Args:
        pictures: those from which training, validation and perhaps test pictures are taken.
        test: the pictures that the source sets aside for tests; empty if it has no such part.
    """

    pictures: Pictures
    test: Pictures


def read(path: Path, height: int, width: int, channels: int) -> Source:
    """Read the pictures of a source in a given size.

    A folder or archive with the folders train and test, perhaps in another folder, and an .npz file with the
    arrays x_train and x_test, have a part for tests. Pictures of another size are averaged over areas. In
    colour, a grey picture has three equal channels; in grey, a coloured one has its luminance.

    Args:
        path: an IDX file (perhaps with .gz), an .npz file, or a folder or tar archive of images.
        height, width: size of the pictures.
        channels: 1 or 3.

    Raises:
        UsageError: the source cannot be read, is damaged, or has no pictures; or pillow is not installed.
    """
    if path.is_dir() or _is_archive(path):
        files = _files_of_folder(path) if path.is_dir() else _files_of_archive(path)
        if not files:
            raise UsageError(f"{path} has no image files ({', '.join(sorted(ENDINGS))}); give another source")
        by_part = [[each for each in files if each.folders[:1] == (part,)] for part in PARTS]
        if not all(by_part):
            by_part = [files]
            _refuse_parts_below(files, path)
        if rest := len(files) - sum(map(len, by_part)):
            say(f"{path}: {rest:,} of {len(files):,} pictures are in neither train/ nor test/, and left out")
        parts = [_images(each, height, width, channels) for each in by_part]
    else:
        arrays = _arrays_of_npz(path) if path.suffix == ".npz" else [_array_of_idx(path)]
        parts = [_fitted(each, height, width, channels, path) for each in arrays]
    return Source(parts[0], parts[1] if len(parts) > 1 else parts[0][:0])


def _array_of_idx(path: Path) -> NDArray[Any]:
    """Return the pictures of an IDX file [pictures, height, width]."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read ({error}); get it again") from None
    if len(content) < 16 or struct.unpack(">I", content[:4])[0] != IDX_BYTES:
        raise UsageError(
            f"{path} is no IDX file of pictures; give one such as t10k-images-idx3-ubyte.gz, an .npz file, "
            "or a folder or tar archive of images"
        )
    count, height, width = struct.unpack(">III", content[4:16])
    if len(content) - 16 != count * height * width:
        raise UsageError(
            f"{path} has {len(content) - 16:,} bytes of pictures and not {count * height * width:,}, so it "
            "is damaged; get it again"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, height, width)


def _arrays_of_npz(path: Path) -> list[NDArray[Any]]:
    """Return the pictures of an .npz file: x_train and x_test, or else its only array of pictures."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, NpzFile):
            raise ValueError("it has a single array without a name, as an .npy file")
        with loaded as file:
            names = [name for name in ("x_train", "x_test") if name in file.files]
            if "x_train" in names:
                return [file[name] for name in names]
            named = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as an .npz file ({error}); get it again") from None
    pictures = [name for name, array in named.items() if array.ndim in (3, 4)]
    if len(pictures) != 1:
        raise UsageError(
            f"{path} has the arrays {', '.join(sorted(named)) or 'none'}; it needs x_train and perhaps "
            "x_test, or one array of pictures"
        )
    return [named[pictures[0]]]


class ImageFile(NamedTuple):
    """An image file.

    Args:
        name: its path, for messages and for the order.
        folders: the folders that it is in, inside of the source.
        file: its path, or its content.
    """

    name: str
    folders: tuple[str, ...]
    file: Path | io.BytesIO


def _files_of_folder(path: Path) -> list[ImageFile]:
    """Return the image files in a folder and the folders below it, in the order of their names."""
    files = image_files(path)
    return _inside([ImageFile(str(file), file.relative_to(path).parts[:-1], file) for file in files])


def image_files(path: Path) -> list[Path]:
    """Return the image files in a folder and the folders below it, in the order of their paths."""
    return [file for file in files_below(path) if file.suffix.lower() in ENDINGS]


def _is_archive(path: Path) -> bool:
    """Return whether a file is a tar archive, perhaps compressed."""
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, OSError, zlib.error, lzma.LZMAError):  # cut short; the reader of its kind says so
        return False


def _files_of_archive(path: Path) -> list[ImageFile]:
    """Return the image files of a tar archive, in the order of their names."""
    files = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if (member.isfile() or member.islnk()) and Path(member.name).suffix.lower() in ENDINGS:
                    found = archive.extractfile(member)
                    assert found is not None  # as it is a file
                    content = io.BytesIO(found.read())
                    files.append(ImageFile(f"{path}/{member.name}", Path(member.name).parts[:-1], content))
            assert archive.fileobj is not None  # as it is open
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # it must end with zeros
                raise EOFError("it ends early, or a part of it is damaged")
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"{path} cannot be read as an archive ({error}); get it again") from None
    return _inside(sorted(files, key=lambda each: Path(each.name)))


def _inside(files: list[ImageFile]) -> list[ImageFile]:
    """Return files without the folders that all of them are in."""
    while files and files[0].folders and len({each.folders[:1] for each in files}) == 1:
        files = [each._replace(folders=each.folders[1:]) for each in files]
    return files


def _refuse_parts_below(files: list[ImageFile], path: Path) -> None:
    """Raise UsageError if folders train and test lie in a folder that is not the only one."""
    folders = {each.folders[:depth] for each in files for depth in range(1, len(each.folders) + 1)}
    for folder in sorted({each[:-1] for each in folders}):
        if all((*folder, part) in folders for part in PARTS):
            raise UsageError(
                f"{path} has the folders train and test in {'/'.join(folder)}, and images beside it; give "
                "the folder that has train and test, or remove the other images"
            )


def _images(files: list[ImageFile], height: int, width: int, channels: int) -> Pictures:
    """Return the pictures of image files."""
    image, operations = optional("PIL.Image"), optional("PIL.ImageOps")
    pictures = []
    for name, _, file in files:
        try:
            with image.open(file) as opened:
                _refuse_mode(opened, name)
                upright = operations.exif_transpose(opened)  # as cameras note how they were held
                pixels = np.asarray(upright.convert("RGB"))
        except image.DecompressionBombError as error:
            raise UsageError(f"{name} is too large for PIL ({error}); make it smaller") from None
        except (OSError, SyntaxError, ValueError) as error:
            raise UsageError(f"{name} is no image, or is damaged ({error}); remove it") from None
        pictures.append(_fitted(pixels[None], height, width, channels, Path(name))[0])
    return np.stack(pictures)


def _refuse_mode(opened: Any, name: str) -> None:
    """Raise UsageError if an image has more than 8 bits in a channel, or transparent pixels."""
    if opened.mode[0] in "IF":  # PIL would cut all values at 255
        raise UsageError(f"{name} has more than 8 bits in a channel; convert it to 8 bits")
    if opened.has_transparency_data and np.asarray(opened.convert("RGBA"))[..., 3].min() < 255:
        raise UsageError(f"{name} has {TRANSPARENT}")


def _fitted(array: NDArray[Any], height: int, width: int, channels: int, path: Path) -> Pictures:
    """Return pictures in another size and with other channels.

    Raises:
        UsageError: the array has no bytes, or no shape of pictures.
    """
    if array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
        raise UsageError(
            f"{path} has pictures of shape {list(array.shape[1:])} and type {array.dtype}; give bytes "
            "(uint8) of shape [height, width] or [height, width, 3]"
        )
    if array.shape[-1] == 4 and len(array) and array[..., 3].min() < 255:
        raise UsageError(f"{path} has {TRANSPARENT}")
    if not len(array):
        raise UsageError(f"{path} has no picture; give another source")
    array = array[..., :3]
    if array.shape[-1] == 3 and channels == 1:
        array = (array @ LUMINANCE).round().astype(np.uint8)[..., None]
    elif array.shape[-1] == 1 and channels == 3:
        array = np.repeat(array, 3, axis=-1)
    if array.shape[1:3] == (height, width):
        return array
    image = optional("PIL.Image")
    size = (width, height)
    fitted = [
        np.asarray(image.fromarray(picture.squeeze(-1) if channels == 1 else picture).resize(size, image.BOX))
        for picture in array
    ]
    return np.stack(fitted).reshape(len(array), height, width, channels)
