"""Stable-Baselines3's PPO on CartPole, with checkpoints and evaluations."""

import gymnasium
import told
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback

WAIT, EVERY, TOTAL = told.number("env_ms", 0) / 1000, int(told.number("eval", 0)), int(told.number("total", 8192))
torch.set_num_threads(1)


class Slow(gymnasium.Wrapper):
    def step(self, action):
        told.injected_wait(WAIT)
        return self.env.step(action)


environment = Slow(gymnasium.make("CartPole-v1"))
model = PPO("MlpPolicy", environment, seed=0, n_steps=512, batch_size=64, device="cpu")
callbacks = [CheckpointCallback(1024, str(told.FOLDER / "checkpoints"))]
if EVERY:
    callbacks.append(EvalCallback(gymnasium.make("CartPole-v1"), eval_freq=EVERY, n_eval_episodes=5, verbose=0))
with told.training() as facts:
    model.learn(TOTAL, callback=CallbackList(callbacks))
    saved = told.FOLDER / "checkpoints"
    facts.update(steps=TOTAL // 512 * 80, saves=len(list(saved.iterdir())), bytes=told.size(saved))
    facts["weights"] = model.policy.state_dict()
