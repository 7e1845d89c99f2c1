"""Images decoded once for many models.

    decoders    JPEG bytes -> pixels, by whichever decoder is the fastest that can be trusted (trusting, jpeg_heads)
    resizing    pixels on a device -> what Pillow would make of them
    decoding    items -> one array per way to resize and crop, in threads
    decoded     chunks of items, ready for any of the models

Nothing here knows a model.
"""

from modelhound.data.decode.decoded import DecodedChunk, decode

__all__ = ["DecodedChunk", "decode"]
