"""Tools as verl has them: their classes, the calls in what a model says, and one of ours that runs Python."""
