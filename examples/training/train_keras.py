"""Trains a line by Keras' fit, on JAX: `python train_keras.py`; prints each step as it ends."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import flyball
import flyball.keras
import keras
import numpy


class Told(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(f"step {int(self.model.optimizer.iterations)}", flush=True)


job = flyball.join()
at_once, times = job.split_batch()
print(f"batch {at_once} x {times}", flush=True)
x = numpy.linspace(0, 1, 480)[:, None]
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
callback = flyball.keras.FlyballCallback(job, at_once)
epoch = callback.restore(model)
print(f"epoch {epoch} at step {int(model.optimizer.iterations)}", flush=True)
model.fit(x, 3 * x + 1, batch_size=at_once, epochs=4, initial_epoch=epoch, verbose=0, callbacks=[Told(), callback])
print("ended", flush=True)
