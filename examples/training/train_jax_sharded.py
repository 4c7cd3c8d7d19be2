"""As train_jax.py, its parameters and momenta sharded over the processes, by Orbax: `python train_jax_sharded.py TEXT`."""

import sys

import flyball.jax
import jax
import numpy
from jax import tree_util
from jax.experimental.multihost_utils import process_allgather
from jax_language_model import Text, initial, mean_loss

job = flyball.jax.join()
over_processes = jax.sharding.NamedSharding(
    jax.sharding.Mesh(numpy.array(jax.devices()), ("processes",)), jax.sharding.PartitionSpec("processes")
)


def sharded(tree):
    """The tree with the first axis of each array shared out to the processes."""
    return tree_util.tree_map(
        lambda array: jax.make_array_from_callback(array.shape, over_processes, lambda part: array[part]), tree
    )


@jax.jit
def update(state, slopes):
    momenta = tree_util.tree_map(lambda momentum, slope: 0.9 * momentum + slope, state["momenta"], slopes)
    parameters = tree_util.tree_map(lambda old, momentum: old - 0.05 * momentum, state["parameters"], momenta)
    return {"parameters": parameters, "momenta": momenta}


text = Text(sys.argv[1], length=64)
parameters = tree_util.tree_map(numpy.asarray, initial(seed=0, width=32))
state = sharded({"parameters": parameters, "momenta": tree_util.tree_map(numpy.zeros_like, parameters)})
job.register_sharded_tree(lambda: state, state.update, every_seconds=600)
gradient = jax.jit(jax.value_and_grad(mean_loss))
whole = None
for _ in job.epochs():
    for tokens in job.loader(text):
        with job.step() as step:
            loss, slopes = gradient(process_allgather(state["parameters"], tiled=True), tokens)
            step.weighted(loss)
            slopes = tree_util.tree_map(lambda slope: step.weight * slope, slopes)
            whole = slopes if whole is None else tree_util.tree_map(jax.numpy.add, whole, slopes)
            if step.completes_batch:
                mean, whole = tree_util.tree_map(numpy.asarray, job.mean(whole)), None
                state.update(update(state, sharded(mean)))
