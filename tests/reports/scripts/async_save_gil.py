"""A thread serialises many small Python objects for each save, and holds Python's lock while it does."""

import json
import threading
from statistics import median

from truth import FOLDER, batches, done, lost, model, now, optimizer, start, step

STEPS, BETWEEN, SECONDS = 320, 40, 1.5


def save() -> None:
    until, parts = now() + SECONDS, []
    while now() < until:
        plan = [{"index": index, "fqn": f"layer.{index}"} for index in range(200)]
        parts = [*parts[-49:], json.dumps({"plan": plan}, sort_keys=True)]
    (FOLDER / "metadata.json").write_text("".join(parts))


network = model(64, 30)
adapt = optimizer(network)
saver = threading.Thread(target=save, name="saver")
beside, alone = [], []
start()
for number, (inputs, labels) in enumerate(batches(STEPS, 16, 64)):
    if number % BETWEEN == BETWEEN - 1 and not saver.is_alive():
        saver = threading.Thread(target=save, name="saver")
        saver.start()
    busy, since = saver.is_alive(), now()
    loss = step(network, adapt, inputs, labels)
    (beside if busy else alone).append(now() - since)
since = now()
if saver.is_alive():
    saver.join()
lost["lock"] = now() - since + sum(beside) - len(beside) * median(alone)
done(loss, beside=len(beside))
