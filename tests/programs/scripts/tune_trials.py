"""Ray Tune: a grid of three trials, of which the one with width 0 fails."""

import sys

from ray import tune


def train(config):
    score = 1.0
    for _ in range(2):
        score += 8 / config["width"]  # @step
        tune.report({"score": score})


if __name__ == "__main__":
    tuner = tune.Tuner(
        train,
        param_space={"width": tune.grid_search([4, 2, 0])},
        tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=sys.argv[1]),
    )
    results = tuner.fit()
    print("errors", results.num_errors, "best", results.get_best_result().config, flush=True)
