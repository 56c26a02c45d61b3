"""Pictures that cost a careless reader its life: by what is wrong with them."""

import io
import struct
import zlib

from PIL import Image


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, real: bool = False) -> bytes:
    """A PNG that says to be of that size; `real`: it has as many pixels, one bit each."""
    pixels = b""
    if real:
        packer = zlib.compressobj()
        row = bytes(1 + -(-width // 8))
        pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def encoded(kind: str, width: int = 32, height: int = 24, **options) -> bytes:
    out = io.BytesIO()
    Image.new("1" if kind == "XBM" else "RGB", (width, height)).save(out, kind, **options)
    return out.getvalue()


def many_scans(scans: int, width: int = 64, height: int = 64) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    jpeg = encoded("JPEG", width, height, progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    return jpeg[:last] + jpeg[last:-2] * scans + jpeg[-2:]


def many_chunks(chunks: int, width: int = 64, height: int = 64) -> bytes:
    """A PNG with as many empty chunks before its pixels."""
    whole = png(width, height, real=True)
    return whole[:33] + chunk(b"aaAa") * chunks + whole[33:]


def many_segments(filling: bytes, width: int = 64, height: int = 64) -> bytes:
    """A JPEG with `filling` before its first segment."""
    whole = encoded("JPEG", width, height)
    return whole[:2] + filling + whole[2:]


HOSTILE = {
    "a PNG of 30000 x 30000 px": png(30_000, 30_000, real=True),
    "a PNG header of 2^31": png(2**31 - 1, 2**31 - 1),
    "an XBM": encoded("XBM"),
    "a GIF": encoded("GIF"),
    "a TIFF": encoded("TIFF"),
    "a JPEG of 200,000 scans": many_scans(200_000),
    "a JPEG in 5 MB of nothing": encoded("JPEG") + bytes(5_000_000),
    "a large JPEG of 50 scans": many_scans(40, 4000, 4000),
    "a PNG of 500,000 chunks": many_chunks(500_000),
    "a JPEG of 500,000 comments": many_segments(b"\xff\xfe\x00\x02" * 500_000, 1000, 1000),
    "a JPEG with 4 MB of filling": many_segments(b"\xff" * 4_000_000, 1000, 1000),
    "a JPEG with 4 MB between segments": many_segments(bytes(4_000_000), 1000, 1000),
    "a torn JPEG": encoded("JPEG", 640, 480)[:700],
    "a torn PNG": png(640, 480, real=True)[:60],
    "no picture": b"torn",
}
