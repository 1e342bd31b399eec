"""Data: `prepare` writes parquet files, `dataset` reads and tokenises them, `loader` makes batches of prompts."""
