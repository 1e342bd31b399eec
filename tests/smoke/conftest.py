"""The seed commands, as the tests of the configuration have them."""

from tests.config.conftest import SEED_SCRIPTS, local_seed, model_dir, seed_words

__all__ = ["SEED_SCRIPTS", "local_seed", "model_dir", "seed_words"]
