"""What the estimators of turns are called. Nothing here imports torch: `by_turn.py` has them."""

GIGPO, STEP_REINFORCE, AGENTIC_REINFORCE = "gigpo", "step_reinforce", "agentic_reinforce"
ESTIMATORS = (GIGPO, STEP_REINFORCE, AGENTIC_REINFORCE)
COMPARE_TURNS = (GIGPO, STEP_REINFORCE)  # whose rewards are made of what followed upon each turn
