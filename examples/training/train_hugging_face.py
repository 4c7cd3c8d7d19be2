"""Trains a line by Hugging Face's Trainer: `python train_hugging_face.py FOLDER`; prints each step as it ends."""

import sys

import flyball
import flyball.huggingface
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        x = torch.tensor([index / 480])
        return {"x": x, "labels": 3 * x + 1}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}


class PrintStep(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print(f"step {state.global_step}", flush=True)


job = flyball.join()
folder = sys.argv[1]
arguments = TrainingArguments(
    folder, report_to=[], disable_tqdm=True, use_cpu=True, **flyball.huggingface.arguments(job)
)
print(f"batch {arguments.per_device_train_batch_size} x {arguments.gradient_accumulation_steps}", flush=True)
callbacks = [PrintStep(), flyball.huggingface.FlyballCallback(job)]
Trainer(Line(), arguments, train_dataset=Points(), callbacks=callbacks).train(
    resume_from_checkpoint=get_last_checkpoint(folder)
)
print("ended", flush=True)
