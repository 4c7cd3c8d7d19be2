"""A small language model of bytes, and the text that it learns, for `train_jax.py`."""

import jax
import jax.numpy as jnp
import numpy


class Text:
    """Pieces of `length` bytes and the one after them."""

    def __init__(self, path: str, length: int) -> None:
        self._bytes = numpy.fromfile(path, dtype=numpy.uint8).astype(numpy.int32)
        self._length = length

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._length

    def __getitem__(self, index: int) -> numpy.ndarray:
        return self._bytes[index * self._length : (index + 1) * self._length + 1]


def initial(seed: int, width: int) -> dict[str, jax.Array]:
    """The parameters at the beginning: the same in every process."""
    shapes = {"bytes": (256, width), "mix": (2 * width, 4 * width), "narrow": (4 * width, width), "out": (width, 256)}
    keys = dict(zip(shapes, jax.random.split(jax.random.PRNGKey(seed), len(shapes)), strict=True))
    return {name: jax.random.normal(keys[name], shape) * shape[0] ** -0.5 for name, shape in shapes.items()}


def mean_loss(parameters: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """The mean cross entropy of each next byte, by the byte before it and the running mean of those before that."""
    seen = parameters["bytes"][tokens[:, :-1]]
    mean = jnp.cumsum(seen, axis=1) / jnp.arange(1, seen.shape[1] + 1)[None, :, None]
    hidden = jax.nn.gelu(jnp.concatenate([seen, mean], axis=-1) @ parameters["mix"]) @ parameters["narrow"]
    chances = jax.nn.log_softmax((seen + hidden) @ parameters["out"])
    return -jnp.take_along_axis(chances, tokens[:, 1:, None], axis=-1).mean()
