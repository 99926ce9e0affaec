"""PPO on CartPole in one file, as CleanRL writes it."""

import gymnasium
import numpy
import told
import torch
from torch import nn
from torch.distributions import Categorical

WAIT, UPDATES, STEPS, GAMMA = told.number("env_ms", 0) / 1000, int(told.number("updates", 10)), 512, 0.99
torch.manual_seed(0)
torch.set_num_threads(1)


class Slow(gymnasium.Wrapper):
    def step(self, action):
        told.injected_wait(WAIT)
        return self.env.step(action)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def act(self, seen, action=None):
        chosen = Categorical(logits=self.actor(seen))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(seen).squeeze(-1)


def collect(environment, agent, seen):
    """One rollout, and its returns."""
    rows = []
    for _ in range(STEPS):
        state = torch.as_tensor(seen, dtype=torch.float32)
        with torch.no_grad():
            action, log, _, value = agent.act(state)
        seen, reward, done, cut, _ = environment.step(action.item())
        rows.append((state, action, log, value, reward, done or cut))
        if done or cut:
            seen, _ = environment.reset()
    total, returns = 0.0, numpy.zeros(STEPS, dtype="float32")
    for i in reversed(range(STEPS)):
        total = rows[i][4] + GAMMA * total * (not rows[i][5])
        returns[i] = total
    states, actions, logs, values = (torch.stack([row[k] for row in rows]) for k in range(4))
    return states, actions, logs, torch.from_numpy(returns), torch.from_numpy(returns) - values, seen


environment = Slow(gymnasium.make("CartPole-v1"))
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4)
seen, _ = environment.reset(seed=0)
with told.training() as facts:
    for _ in range(UPDATES):
        states, actions, logs, returns, gains, seen = collect(environment, agent, seen)
        for _ in range(4):
            for chosen in torch.randperm(STEPS).split(64):
                _, log, entropy, value = agent.act(states[chosen], actions[chosen])
                ratio = (log - logs[chosen]).exp()
                gain = gains[chosen]
                policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
                loss = policy + 0.5 * (value - returns[chosen]).pow(2).mean() - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    facts.update(steps=UPDATES * 32, weights=agent.state_dict())
