"""RLlib: one iteration of PPO on CartPole, with an env runner of its own."""

from ray.rllib.algorithms.ppo import PPOConfig

if __name__ == "__main__":
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1)
        .training(train_batch_size=200, minibatch_size=100, num_epochs=1)
    )
    algorithm = config.build_algo()
    result = algorithm.train()
    print("steps", result["num_env_steps_sampled_lifetime"], flush=True)
    algorithm.stop()
