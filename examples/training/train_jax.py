"""Trains a small language model on any text with JAX: `python train_jax.py TEXT`, one process a pod."""

import sys

import flyball.jax
import jax
from jax import tree_util
from jax_language_model import Text, initial, mean_loss

job = flyball.jax.join()
text = Text(sys.argv[1], length=64)
state = {"parameters": initial(seed=0, width=32)}
job.register_tree(lambda: state, state.update)
gradient = jax.jit(jax.value_and_grad(mean_loss))
whole = None
for _ in job.epochs():
    for tokens in job.loader(text):
        with job.step() as step:
            loss, slopes = gradient(state["parameters"], tokens)
            step.weighted(loss)
            slopes = tree_util.tree_map(lambda slope: step.weight * slope, slopes)
            whole = slopes if whole is None else tree_util.tree_map(jax.numpy.add, whole, slopes)
            if step.completes_batch:
                mean, whole = job.mean(whole), None
                state["parameters"] = tree_util.tree_map(
                    lambda old, slope: old - 0.5 * slope, state["parameters"], mean
                )
