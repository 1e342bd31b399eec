"""Why a job does not go on, and what went wrong first."""
