"""Ray Train with two workers, whose rank nobody but Ray Train knows."""

import ray
import ray.train
import ray.train.torch


def work(config):
    total = 0
    for step in range(3):
        total += step  # @train
    ray.train.report({"total": total})


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    scaling = ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.01})
    result = ray.train.torch.TorchTrainer(work, train_loop_config={}, scaling_config=scaling).fit()
    print("error", result.error, flush=True)


if __name__ == "__main__":
    main()
