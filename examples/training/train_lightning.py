"""Trains a line by Lightning's Trainer: `python train_lightning.py FOLDER`; prints each step as it ends."""

import sys

import flyball
import flyball.lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_index):
        (x,) = batch
        return torch.nn.functional.mse_loss(self.layer(x), 3 * x + 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class PrintStep(Callback):
    def __init__(self):
        self.steps = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step != self.steps:
            self.steps = trainer.global_step
            print(f"step {self.steps}", flush=True)


job = flyball.join()
at_once, times = job.split_batch()
print(f"batch {at_once} x {times}", flush=True)
points = torch.utils.data.TensorDataset(torch.linspace(0, 1, 480)[:, None])
callback = flyball.lightning.FlyballCallback(job, f"{sys.argv[1]}/last.ckpt")
trainer = Trainer(
    accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    max_epochs=-1, callbacks=[PrintStep(), callback], **flyball.lightning.arguments(job),
)  # fmt: skip
loader = torch.utils.data.DataLoader(points, batch_size=at_once)
trainer.fit(Line(), loader, ckpt_path=callback.last_checkpoint)
print("ended", flush=True)
