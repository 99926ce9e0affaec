"""A small diffusion model with accelerate, and a pipeline that samples now and then, as in diffusers' tutorial."""

import told
import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EVERY = int(told.number("epochs", 3)), int(told.number("every", 1))
torch.manual_seed(0)
torch.set_num_threads(1)
blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
model = UNet2DModel(32, 3, 3, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, **blocks)
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(torch.rand(480, 3, 32, 32) * 2 - 1), batch_size=16, shuffle=True)
rates = get_cosine_schedule_with_warmup(optimizer, 10, len(loader) * EPOCHS)
accelerator = Accelerator(cpu=True)
model, optimizer, loader, rates = accelerator.prepare(model, optimizer, loader, rates)
with told.training() as facts:
    for epoch in range(1, EPOCHS + 1):
        for (images,) in loader:
            noise = torch.randn_like(images)
            times = torch.randint(0, 1000, (len(images),))
            with accelerator.accumulate(model):
                found = model(scheduler.add_noise(images, noise, times), times, return_dict=False)[0]
                accelerator.backward(nn.functional.mse_loss(found, noise))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                rates.step()
                optimizer.zero_grad()
        pipeline = DDPMPipeline(unet=accelerator.unwrap_model(model), scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        if epoch % EVERY == 0:
            pipeline(batch_size=4, generator=torch.Generator().manual_seed(0), num_inference_steps=40)
        pipeline.save_pretrained(told.FOLDER / "pipeline")
    facts.update(steps=30 * EPOCHS, saves=EPOCHS, weights=accelerator.unwrap_model(model).state_dict())
