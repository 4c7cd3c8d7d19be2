"""Trains a line by Keras' fit, on JAX: `python train_keras.py`; prints each step as it ends."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import flyball.keras
import keras
import numpy


class PrintStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(f"step {int(self.model.optimizer.iterations)}", flush=True)


job = flyball.keras.join()
print("batch {} x {}".format(*job.split_batch()), flush=True)
x = numpy.linspace(0, 1, 480)[:, None]
y = 3 * x + 1
batches = flyball.keras.Batches(job, len(x), lambda places: (x[places], y[places]))
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=batches.accumulated), "mse")
callback = flyball.keras.FlyballCallback(job, batches)
callback.restore(model)
print(f"goes on after step {job.position.iteration}", flush=True)
for epochs in batches.fits():
    model.fit(batches, **epochs, shuffle=False, verbose=0, callbacks=[PrintStep(), callback])
print("ended with", *(weight.item() for weight in model.get_weights()), flush=True)
